"""The monitor's permissions, and a log that was trimmed one too far."""

from __future__ import annotations

import random

import pytest

from headrace.recovery.frontiers.fixed_point import Choice, Dataflow, Edge, choose
from headrace.recovery.frontiers.frontier import EVERYTHING, NOTHING, Frontier
from headrace.recovery.frontiers.monitor import Monitor, Release, Trim
from headrace.recovery.frontiers.processors import (
    BEGINNING,
    Checkpoint,
    Checkpointed,
    Stateless,
    trimmed,
)
from headrace.recovery.frontiers.transformers import Same

A_TO_B = Dataflow([Edge("ab", "a", "b")])


def sent(count: int, label: int) -> Checkpoint:
    """A checkpoint of a producer that logs; an input of its own tells its places apart."""
    return Checkpoint(
        Frontier.sequences({"in": label}),
        label,
        fixed={"ab": Frontier.sequences({"ab": count})},
        discarded={"ab": NOTHING},
    )


def read(count: int, label: int) -> Checkpoint:
    return Checkpoint(Frontier.sequences({"ab": count}), label)


def beginning() -> Monitor:
    return Monitor(A_TO_B, {name: Checkpointed([BEGINNING]) for name in "ab"})


def test_a_log_is_trimmed_of_what_the_consumer_has_kept_for_good() -> None:
    monitor = beginning()
    assert monitor.persisted("b", read(8, 1)) == []
    first = sent(10, 1)
    kept = read(8, 1)
    assert monitor.persisted("a", first) == [
        Release("a", first),
        Release("b", kept),
        Trim("a", "ab", Frontier.sequences({"ab": 8})),
    ]
    monitor.check()


def test_checkpoints_may_be_reported_in_any_order() -> None:
    monitor = beginning()
    monitor.persisted("b", read(20, 2))
    monitor.persisted("a", sent(10, 1))
    assert monitor.low_watermark("b") is BEGINNING
    monitor.persisted("b", read(8, 1))
    assert monitor.low_watermark("b").label == 1


def test_a_rollback_voids_the_checkpoints_above_it() -> None:
    monitor = beginning()
    monitor.persisted("b", read(20, 1))
    monitor.rolled_back(Choice({"a": BEGINNING, "b": BEGINNING}, {}, {}))
    # What `a` sends now need not be what `b` read then.
    monitor.persisted("a", sent(30, 1))
    assert monitor.low_watermark("b") is BEGINNING


def test_a_choice_behind_the_low_watermark_is_refused() -> None:
    monitor = beginning()
    monitor.persisted("a", sent(10, 1))
    with pytest.raises(AssertionError, match="a went back to nothing, behind 1"):
        monitor.rolled_back(Choice({"a": BEGINNING, "b": BEGINNING}, {}, {}))


def test_a_stateless_source_may_acknowledge_what_has_left_the_graph() -> None:
    """4.3: an ephemeral way in, whose inputs are acknowledged when the outputs are."""
    dataflow = Dataflow([Edge("in", "source", "map"), Edge("out", "map", "database")])
    monitor = Monitor(
        dataflow,
        {
            "source": Stateless({"in": Same()}, complete=NOTHING),
            "map": Stateless({"out": Same()}, complete=NOTHING),
            "database": Checkpointed([BEGINNING]),
        },
    )
    three = Frontier.before(3)
    assert monitor.completed("source", three) == []
    assert monitor.completed("map", three) == []
    permissions = monitor.persisted("database", Checkpoint(Frontier.before(2), "acknowledged"))
    released = {p.processor: p.checkpoint.frontier for p in permissions if isinstance(p, Release)}
    assert released == dict.fromkeys(["source", "map", "database"], Frontier.before(2))


def history(rng: random.Random, monitor: Monitor, steps: int, too_far: int = 0) -> None:
    """Checkpoints, trims and failures of a logged edge; every choice must keep its promises."""
    offers = {"a": [BEGINNING], "b": [BEGINNING]}
    lost, at, marks = 0, {"a": 0, "b": 0}, dict.fromkeys("ab", NOTHING)
    for label in range(1, steps):
        name = rng.choice("ab")
        at[name] += rng.randint(0, 5)
        at["b"] = min(at.values())
        one = sent(at["a"], label) if name == "a" else read(at["b"], label)
        if name == "b" and offers["b"][-1].frontier == one.frontier:
            continue
        offers[name].append(one)
        for permission in monitor.persisted(name, one):
            if isinstance(permission, Trim):
                lost = int(permission.frontier.bound("ab")[0]) + too_far
        for other, mark in marks.items():
            marks[other] = monitor.low_watermark(other).frontier
            assert mark <= marks[other]
        if rng.random() < 0.3:
            gone = Frontier.sequences({"ab": lost})
            choice = fail(rng, offers, at, gone)
            monitor.rolled_back(choice)
            offers = {
                other: [c for c in made if c.frontier <= choice.frontier(other)]
                for other, made in offers.items()
            }
            if choice.frontier("a") != EVERYTHING:
                at["a"] = int((*choice.checkpoints["a"].fixed.get("ab", NOTHING).bound("ab"), 0)[0])
            if choice.frontier("b") != EVERYTHING:
                at["b"] = int((*choice.frontier("b").bound("ab"), 0)[0])
        monitor.check()


def fail(
    rng: random.Random, offers: dict[str, list[Checkpoint]], at: dict[str, int], gone: Frontier
) -> Choice:
    running = {
        "a": Checkpoint(EVERYTHING, discarded={"ab": gone}),
        "b": Checkpoint(EVERYTHING, delivered={"ab": Frontier.sequences({"ab": at["b"]})}),
    }
    failed = rng.choice("ab")
    made = {
        "a": [c if c is BEGINNING else trimmed(c, "ab", gone) for c in offers["a"]],
        "b": offers["b"],
    }
    processors = {n: Checkpointed([*made[n], *([running[n]] * (n != failed))]) for n in made}
    return choose(A_TO_B, processors, [failed])


def test_no_failure_goes_behind_what_was_promised() -> None:
    for seed in range(300):
        history(random.Random(seed), beginning(), 40)


def test_a_log_trimmed_one_too_far_breaks_the_promise() -> None:
    with pytest.raises(AssertionError, match="behind"):
        for seed in range(300):
            history(random.Random(seed), beginning(), 40, too_far=1)


def test_reports_of_the_wrong_kind_are_refused() -> None:
    monitor = Monitor(
        A_TO_B, {"a": Stateless({"ab": Same()}, complete=NOTHING), "b": Checkpointed([BEGINNING])}
    )
    with pytest.raises(TypeError, match="a takes no checkpoints"):
        monitor.persisted("a", BEGINNING)
    with pytest.raises(TypeError, match="b has state"):
        monitor.completed("b", NOTHING)
