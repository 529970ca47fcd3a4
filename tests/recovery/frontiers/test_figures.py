"""The figures of "Falkirk Wheel: Rollback Recovery for Dataflow Systems" (Isard and Abadi)."""

from __future__ import annotations

import pytest

from headrace.recovery.frontiers.fixed_point import Choice, Dataflow, Edge, choose
from headrace.recovery.frontiers.frontier import EVERYTHING, NOTHING, Frontier
from headrace.recovery.frontiers.processors import (
    BEGINNING,
    Checkpoint,
    Checkpointed,
    Processor,
    Stateless,
)
from headrace.recovery.frontiers.selective import TimedState, deliverable, retained
from headrace.recovery.frontiers.transformers import Again, Enter, Leave, Numbered, Same

ONE, TWO, THREE = (Frontier.through(epoch) for epoch in (1, 2, 3))


def frontiers(choice: Choice) -> dict[str, Frontier]:
    return {name: choice.frontier(name) for name in choice.checkpoints}


# --- Figure 1: four regimes in one application ----------------------------------------------------

#: Queries are joined with a batch result and with real-time analytics, both of the same data;
#: statistics go to a database.
APPLICATION = Dataflow(
    [
        Edge("queries", "clients", "join"),
        Edge("fields", "data", "reduce"),
        Edge("to batch", "reduce", "batch"),
        Edge("to analytics", "reduce", "analytics"),
        Edge("batch results", "batch", "join"),
        Edge("fresh results", "analytics", "join"),
        Edge("statistics", "join", "database"),
    ]
)


def application(failed: str) -> Choice:
    """At epoch 6 something fails. Regimes: ephemeral, batch, lazy and eager checkpoints."""
    six = Frontier.before(6)
    #: What the batch reads and writes, and the fresh results, are logged.
    logged = {"batch results": NOTHING, "fresh results": NOTHING}

    def kept(name: str, out: list[str], *epochs: int) -> Checkpointed:
        sent = {edge: logged[edge] for edge in out if edge in logged}
        made = [Checkpoint(Frontier.before(epoch), epoch, discarded=sent) for epoch in epochs]
        if name != failed:
            # The batch has last run on epochs 0 to 2.
            read = {"to batch": Frontier.before(3)}
            made.append(Checkpoint(six, "present", delivered=read, discarded=sent))
        return Checkpointed([BEGINNING, *made], {edge: Same() for edge in out})

    def ephemeral(*out: str) -> Stateless:
        # It holds nothing, so after a failure it works again on what clients send again.
        return Stateless({e: Same() for e in out}, frozenset({"to batch"}), complete=six)

    processors: dict[str, Processor] = {
        "clients": kept("clients", ["queries"], 1, 2, 3, 4, 5, 6),
        "data": kept("data", ["fields"], 1, 2, 3, 4, 5, 6),
        "reduce": ephemeral("to batch", "to analytics"),
        "batch": kept("batch", ["batch results"], 3),
        "analytics": kept("analytics", ["fresh results"], 2, 4),
        "join": ephemeral("statistics"),
        "database": kept("database", [], 1, 2, 3, 4, 5, 6),
    }
    return choose(APPLICATION, processors)


def epochs(choice: Choice) -> dict[str, float]:
    return {name: (*one.bound(None), 0)[0] for name, one in frontiers(choice).items()}


def test_figure_1_a_database_that_persists_each_update_takes_nobody_back() -> None:
    assert set(epochs(application("database")).values()) == {6}


def test_figure_1_a_failed_batch_leaves_the_analytics_alone() -> None:
    back = ["clients", "join", "batch", "database"]
    stay = ["data", "reduce", "analytics"]
    expected = dict.fromkeys(back, 3) | dict.fromkeys(stay, 6)
    assert epochs(application("batch")) == expected


def test_figure_1_failed_analytics_leave_the_batch_alone() -> None:
    choice = application("analytics")
    back = ["clients", "data", "reduce", "join", "analytics", "database"]
    assert epochs(choice) == dict.fromkeys(back, 4) | {"batch": 6}
    assert [str(reason) for reason in choice.explain("clients")] == [
        (
            "join has read times before 6 at [times before 6], but analytics goes back to where"
            " times before 4 was sent"
        ),
        (
            "clients cannot send times before 5 again at 5, but join goes back to where times"
            " before 4 was read"
        ),
    ]


# --- Figure 2: projections ------------------------------------------------------------------------


def test_figure_2_projections_of_three_kinds() -> None:
    state = Checkpoint(
        Frontier.sequences({"d1": 3, "d2": 2}), fixed={"e": Frontier.sequences({"e": 4})}
    )
    assert Checkpointed([state]).fixed("e", state) == Frontier.sequences({"e": 4})
    assert Same().fixed(TWO) == TWO
    assert Enter().fixed(TWO) == Frontier.before(3, 0)
    assert Enter().fixed(TWO).contains(2, 1_000_000)


def test_section_3_2_epochs_become_sequence_numbers() -> None:
    assert Numbered("e", [5, 2]).fixed(Frontier.through(1)) == Frontier.sequences({"e": 7})


# --- Figure 3: selective rollback -----------------------------------------------------------------

NUMBERS = {"one": 1, "two": 2, "three": 3}
A, B = (1,), (2,)


class SelectSumBuffer:
    """Select makes numbers of words, Sum adds them up by time, Buffer keeps the sums."""

    def __init__(self) -> None:
        self.sums, self.buffer = TimedState[int](), TimedState[int]()

    def word(self, time: tuple[int, ...], word: str) -> None:
        self.sums.put(time, self.sums.get(time, 0) + NUMBERS[word])

    def over(self, time: tuple[int, ...]) -> None:
        self.buffer.put(time, self.sums.get(time, 0))
        self.sums.remove(time)


def test_figure_3_a_rollback_keeps_a_time_whose_work_was_interleaved() -> None:
    system = SelectSumBuffer()
    work = [(A, "one"), (B, "two"), (A, "three"), (B, "one")]
    for time, word in work[:3]:
        system.word(time, word)
    system.over(A)
    # Sum is empty at A though it never was: its checkpoint costs nothing.
    assert system.sums.checkpoint(ONE) == {}
    assert system.buffer.checkpoint(ONE) == {A: 4}
    system.word(*work[3])
    for state in (system.sums, system.buffer):
        state.roll_back(ONE)
    for time, word in work:
        if time == B:
            system.word(time, word)
    system.over(B)
    assert system.buffer.checkpoint(TWO) == {A: 4, B: 3}
    assert deliverable([B, A, B]) == [0, 1]


# --- Figure 4: a history and its part within a frontier -------------------------------------------


def test_figure_4_a_history_within_a_frontier() -> None:
    history = [(A, "m1"), (B, "m2"), (A, "m3"), (A, "notified"), (B, "m4")]
    assert [event for _, event in retained(history, ONE)] == ["m1", "m3", "notified"]
    assert retained(history, NOTHING) == []
    assert retained(history, EVERYTHING) == history


# --- Figure 5: notifications ----------------------------------------------------------------------

NOTIFIED = Dataflow([Edge("px", "p", "x"), Edge("xy", "x", "y")])


def notified(*, heeded: bool) -> Choice:
    """p sent a message at 1 when it was notified of 1; x took it and sent nothing; then y was
    notified of 1. Now p is back at the beginning.
    """
    told = ONE if heeded else NOTHING
    processors: dict[str, Processor] = {
        "p": Checkpointed([BEGINNING], {"px": Same()}),
        "x": Checkpointed([BEGINNING, Checkpoint(ONE, notified=told)], {"xy": Same()}),
        "y": Checkpointed([BEGINNING, Checkpoint(ONE, delivered={"xy": NOTHING}, notified=told)]),
    }
    return choose(NOTIFIED, processors)


def test_figure_5_a_notification_does_not_survive_the_promise_it_rests_on() -> None:
    choice = notified(heeded=True)
    assert frontiers(choice) == dict.fromkeys("pxy", NOTHING)
    assert [reason.neighbour for reason in choice.explain("y")] == ["p", "x"]
    unheeded = notified(heeded=False)
    assert unheeded.frontier("y") == ONE, "the pairwise constraints let it stay"


# --- Figure 6 is `fixed_point.py`. Figure 7: graphs of several kinds ------------------------------


def test_figure_7_sequence_numbers_without_logs_take_everybody_back() -> None:
    chain = Dataflow([Edge("ab", "a", "b"), Edge("bc", "b", "c")])

    def snapshots(name: str, out: str | None, into: str | None, *failed: str) -> Checkpointed:
        made = [BEGINNING]
        for number in (10, 20):
            read = Frontier.sequences({into or "in": number})
            sent = {} if out is None else {out: Frontier.sequences({out: number})}
            made.append(Checkpoint(read, number, fixed=sent))
        if name not in failed:
            delivered = {} if into is None else {into: Frontier.sequences({into: 25})}
            made.append(Checkpoint(EVERYTHING, "present", delivered=delivered))
        return Checkpointed(made)

    processors: dict[str, Processor] = {
        "a": snapshots("a", "ab", None),
        "b": snapshots("b", "bc", "ab", "b"),
        "c": snapshots("c", None, "bc"),
    }
    choice = choose(chain, processors, ["b"])
    assert [choice.checkpoints[name].label for name in "abc"] == [20, 20, 20]


@pytest.mark.parametrize("logged", [frozenset[str](), frozenset({"ab"})])
def test_figure_7_a_log_is_a_firewall_for_those_before_it(logged: frozenset[str]) -> None:
    chain = Dataflow([Edge("ab", "a", "b"), Edge("bc", "b", "c")])
    processors: dict[str, Processor] = {
        "a": Stateless({"ab": Same()}, logged, complete=THREE),
        "b": Stateless({"bc": Same()}, complete=THREE),
        "c": Checkpointed([BEGINNING, Checkpoint(ONE)]),
    }
    choice = choose(chain, processors)
    assert [choice.frontier(name) for name in "bc"] == [ONE, ONE]
    assert choice.frontier("a") == (THREE if logged else ONE)


def test_figure_7_a_loop_keeps_the_rounds_that_its_body_has_kept() -> None:
    loop = Dataflow(
        [
            Edge("in", "head", "body"),
            Edge("again", "body", "body"),
            Edge("out", "body", "tail"),
        ]
    )
    kept, logged = Frontier.through(2, 5), {"again": NOTHING, "out": NOTHING}
    processors: dict[str, Processor] = {
        "head": Stateless({"in": Enter()}, frozenset({"in"}), complete=THREE),
        "body": Checkpointed(
            [BEGINNING, Checkpoint(kept, "round 5", discarded=logged)],
            {"again": Again(), "out": Leave()},
        ),
        "tail": Stateless(complete=THREE),
    }
    choice = choose(loop, processors)
    # Rounds 0 to 5 of epoch 2 are kept; its results are not complete before the last round.
    assert choice.checkpoints["body"].label == "round 5"
    assert choice.frontier("head") == THREE
    assert choice.frontier("tail") == ONE
