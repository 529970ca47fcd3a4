"""The registry against a dumb model: everybody who writes, names and deletes files, at random."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.layout import owner
from headrace.recovery.metadata import (
    CheckpointMetadata,
    DatabaseHandle,
    FileHandle,
    SharedFile,
    StateHandle,
    StateSchema,
    SubtaskSnapshot,
)
from headrace.recovery.registry import Deletable, SharedStateRegistry, references

NOTHING = Deletable((), frozenset(), ())


def completed(registry: SharedStateRegistry, number: int, *files: str) -> None:
    registry.begin(number)
    registry.complete(number, frozenset(files))


def test_everything_that_a_restore_reads_is_referenced() -> None:
    sum_ = "0" * 16
    state = StateHandle("sum", "totals", "keyed", "chk-1/a", 8, 1, sum_, 1)
    database = DatabaseHandle(
        "sum",
        "rocksdb",
        0,
        1,
        schemas=[StateSchema("totals", 1, "chk-2/s", 8, 1, sum_)],
        shared=[SharedFile("7.sst", "shared/1-w0-e1-7", 1, sum_)],
        own=[FileHandle("CURRENT", "chk-3/c", 8, 1, sum_)],
    )
    buffer = BufferHandle("chk-2/b", 8, 1, sum_, 1, 0, 1)
    channel = ChannelStateHandle(0, 0, 0, "replay", 0, [buffer], ended=False)
    subtask = SubtaskSnapshot(0, 0, False, [state], [], [], [channel], databases=[database])
    metadata = CheckpointMetadata("job", 3, 1, "aligned", False, 0, 0, 1, [], [], [subtask], [])
    assert references(metadata) == {"chk-1/a", "chk-2/b", "chk-2/s", "chk-3/c", "shared/1-w0-e1-7"}


def test_what_was_let_go_is_collected_but_for_what_others_name() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1, "chk-1/a", "shared/1-b")
    completed(registry, 2, "shared/1-b")
    registry.let_go(1)
    assert registry.collect() == Deletable((1,), frozenset({"shared/1-b"}), ())
    completed(registry, 3)
    registry.let_go(2)
    assert registry.collect() == Deletable((2,), frozenset(), ("shared/1-b",))
    assert registry.collect() == NOTHING


def test_a_file_that_only_a_checkpoint_let_go_names_waits_for_whoever_may_build_on_that() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1, "chk-1/a")
    for number in (2, 3):
        registry.begin(number)
    registry.complete(2, frozenset({"chk-1/a"}))
    registry.let_go(1)
    registry.begin(4)
    registry.complete(3, frozenset())
    registry.let_go(2)
    # 4 was triggered when 2 was the newest: it may name what 2 names, which lies in 1's folder.
    assert registry.collect() == Deletable((1,), frozenset({"chk-1/a"}), ())
    registry.complete(4, frozenset({"chk-1/a"}))
    assert registry.collect() == Deletable((2,), frozenset(), ())


def test_what_was_written_for_a_given_up_checkpoint_is_kept_until_a_newer_one_is_known_to_all() -> (
    None
):
    registry = SharedStateRegistry()
    for number in (1, 2, 3):
        registry.begin(number)
    registry.give_up(2)
    registry.complete(1, frozenset())
    assert registry.collect() == NOTHING, "3, and whatever comes next, may name what 2 wrote"
    registry.begin(4)
    registry.complete(3, frozenset({"chk-2/a"}))
    assert registry.collect() == NOTHING, "4 may, too: it was triggered before 3 was complete"
    registry.complete(4, frozenset())
    assert registry.collect() == Deletable((2,), frozenset({"chk-2/a"}), ())


def test_given_up_checkpoints_that_build_on_each_other_go_together() -> None:
    registry = SharedStateRegistry()
    for number in (1, 2):
        registry.begin(number)
        registry.give_up(number)
    completed(registry, 3)
    assert registry.collect() == Deletable((1, 2), frozenset(), ())


def test_what_a_given_up_checkpoint_was_built_on_is_kept_as_long_as_somebody_may_build_on_it() -> (
    None
):
    registry = SharedStateRegistry()
    completed(registry, 1, "chk-1/a")
    for number in (3, 4):
        registry.begin(number)
    registry.complete(3, frozenset())
    registry.let_go(1)
    registry.give_up(4)
    for number in (5, 6):
        registry.begin(number)
    registry.complete(5, frozenset())
    registry.let_go(3)
    # 4 may have named what 1 holds, and 6 what 4 named, though 6 began long after 1 was let go.
    assert registry.collect() == NOTHING
    registry.complete(6, frozenset())
    assert registry.collect() == Deletable((1, 3, 4), frozenset(), ())


def test_what_was_given_up_waits_for_a_checkpoint_before_which_everybody_has_heard_that() -> None:
    registry = SharedStateRegistry()
    for number in (1, 2):
        registry.begin(number)
    registry.complete(2, frozenset())
    registry.give_up(1)
    assert registry.collect() == NOTHING, "somebody may still be writing"
    completed(registry, 3)
    assert registry.collect() == Deletable((1,), frozenset(), ())


def test_what_was_written_under_the_number_of_a_savepoint_goes_with_the_next_complete_one() -> None:
    registry = SharedStateRegistry()
    registry.begin(1)
    registry.begin(2)
    registry.complete(2, frozenset())
    registry.save(1)
    assert registry.collect().checkpoints == (1,), "everybody had a part in it, and in a later one"


def test_when_the_job_has_finished_nothing_is_kept_for_checkpoints_that_might_come() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1)
    registry.begin(2)
    registry.begin(3)
    registry.begin(4)
    registry.complete(3, frozenset({"chk-3/a"}))
    registry.let_go(1)
    for given_up in (2, 4):
        registry.give_up(given_up)
    assert registry.collect() == NOTHING, (
        "a later one may name what was written for 4, and what that names"
    )
    registry.end()
    assert registry.collect().checkpoints == (1,), "late files of 2 and 4 are left to the next run"


def test_a_checkpoint_that_does_not_count_any_more_stays_where_it_is() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1, "chk-1/a")
    completed(registry, 2, "chk-1/a")
    registry.let_go(1)
    registry.forget(2)
    registry.adopt(1, frozenset({"chk-1/a"}))
    assert registry.collect() == NOTHING
    completed(registry, 3)
    registry.let_go(1)
    assert registry.collect() == Deletable((1,), frozenset(), ())


def test_what_somebody_abandoned_goes_at_once_but_for_what_complete_ones_name() -> None:
    registry = SharedStateRegistry()
    for number in (2, 4):
        registry.adopt_abandoned(number)
    registry.adopt(3, frozenset({"chk-2/a", "shared/1-b"}))
    assert registry.collect() == Deletable((2, 4), frozenset({"chk-2/a"}), ())
    completed(registry, 5)
    registry.let_go(3)
    assert registry.collect() == Deletable((3,), frozenset(), ("chk-2/a", "shared/1-b"))


def test_numbers_are_begun_in_order() -> None:
    registry = SharedStateRegistry()
    registry.adopt(4, frozenset())
    with pytest.raises(AssertionError, match="out of order"):
        registry.begin(4)


class Model(RuleBasedStateMachine):
    """A coordinator with its registry, workers that hear it late, and a store.

    Each worker hears what the coordinator says in order: triggers, completions, ends. When it has heard a trigger it may write its part at any
    time: own files, and names of any that it knows to be stored. Its report reaches the coordinator later.
    """

    @initialize(retain=st.integers(1, 3), workers=st.integers(1, 3))
    def begin(self, retain: int, workers: int) -> None:
        self.retain = retain
        self.registry = SharedStateRegistry()
        self.files: set[str] = set()
        self.next = 1
        self.under_way: dict[int, dict[int, set[str]]] = {}
        self.retained: dict[int, frozenset[str]] = {}
        #: Complete ones whose metadata has not been deleted.
        self.there: dict[int, frozenset[str]] = {}
        #: What the coordinator has said and worker w has not heard.
        self.said: list[list[tuple[str, int]]] = [[] for _ in range(workers)]
        #: Per worker: triggered and not written; {checkpoint: what it wrote or named}; what it may build on.
        self.asked: list[list[int]] = [[] for _ in range(workers)]
        self.wrote: list[dict[int, set[str]]] = [{} for _ in range(workers)]
        self.known: list[set[str]] = [set() for _ in range(workers)]

    def say(self, what: str, number: int) -> None:
        for heard in self.said:
            heard.append((what, number))

    @precondition(lambda self: len(self.under_way) < 4)
    @rule()
    def trigger(self) -> None:
        self.registry.begin(self.next)
        self.under_way[self.next] = {}
        self.say("trigger", self.next)
        self.next += 1

    @rule(data=st.data(), messages=st.integers(1, 5))
    def hear(self, data: st.DataObject, messages: int) -> None:
        worker = data.draw(st.sampled_from(range(len(self.said))))
        for _ in range(min(messages, len(self.said[worker]))):
            self.hear_one(worker)

    def hear_one(self, worker: int) -> None:
        what, number = self.said[worker].pop(0)
        match what:
            case "trigger":
                self.asked[worker].append(number)
            case "complete":
                self.known[worker] = self.wrote[worker].pop(number, set())
                newer = {n: files for n, files in self.wrote[worker].items() if n > number}
                self.wrote[worker] = newer
            case _:
                self.asked[worker] = [n for n in self.asked[worker] if n != number]

    @precondition(lambda self: any(self.asked))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """A worker writes its part of something that it has heard the trigger of, and not the end."""
        workers = [worker for worker, asked in enumerate(self.asked) if asked]
        worker = data.draw(st.sampled_from(workers))
        self.write_one(data, worker, data.draw(st.sampled_from(self.asked[worker])))

    def write_one(self, data: st.DataObject, worker: int, number: int) -> None:
        """Its report arrives at once: a late one makes a difference to nobody but the checkpoint itself."""
        self.asked[worker].remove(number)
        folder = data.draw(st.sampled_from((f"chk-{number}/", f"shared/{number}-")))
        part = {f"{folder}w{worker}-{i}" for i in range(data.draw(st.integers(0, 2)))}
        self.files |= part
        stored = sorted(self.known[worker].union(*self.wrote[worker].values()))
        if stored:
            part |= set(data.draw(st.lists(st.sampled_from(stored), max_size=2)))
        self.wrote[worker][number] = part
        if number in self.under_way:
            self.under_way[number][worker] = part

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Whoever has not written its part does so now, with what it has heard up to the trigger."""
        number = data.draw(st.sampled_from(sorted(self.under_way)))
        parts = self.under_way[number]
        for worker in [w for w in range(len(self.said)) if w not in parts]:
            while number not in self.asked[worker]:
                self.hear_one(worker)
            self.write_one(data, worker, number)
        self.complete_one(number)

    def complete_one(self, number: int) -> None:
        named = frozenset[str]().union(*self.under_way.pop(number).values())
        self.registry.complete(number, named)
        self.retained[number] = self.there[number] = named
        self.say("complete", number)
        for older in [n for n in self.under_way if n < number]:
            self.give_up_one(older)
        for subsumed in sorted(self.retained)[: -self.retain]:
            del self.retained[subsumed]
            self.registry.let_go(subsumed)
        self.sweep()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.give_up_one(data.draw(st.sampled_from(sorted(self.under_way))))

    def give_up_one(self, number: int) -> None:
        del self.under_way[number]
        self.registry.give_up(number)
        self.say("give up", number)

    def sweep(self) -> None:
        deletable = self.registry.collect()
        for number in deletable.checkpoints:
            self.there.pop(number, None)
        prefixes = tuple(p for n in deletable.checkpoints for p in (f"chk-{n}/", f"shared/{n}-"))
        own = {f for f in self.files if f.startswith(prefixes)} if prefixes else set()
        self.files -= own - deletable.keep
        self.files -= set(deletable.files)

    @rule()
    def die(self) -> None:
        """Another driver goes on from the newest complete one, with workers that know that one alone."""
        self.registry = SharedStateRegistry()
        written = {owner(path) for path in self.files}
        for number in sorted(n for n in written if n is not None and n not in self.there):
            self.registry.adopt_abandoned(number)
        for number, named in sorted(self.there.items()):
            self.registry.adopt(number, named)
        kept = sorted(self.there)[-self.retain :]
        for number in sorted(self.there)[: -self.retain]:
            self.registry.let_go(number)
        self.retained = {number: self.there[number] for number in kept}
        self.under_way = {}
        for worker in range(len(self.said)):
            self.said[worker], self.asked[worker], self.wrote[worker] = [], [], {}
            self.known[worker] = set(self.there[kept[-1]]) if kept else set()

    @invariant()
    def what_counts_is_there(self) -> None:
        named = frozenset[str]().union(*self.retained.values())
        for parts in self.under_way.values():
            named = named.union(*parts.values())
        assert named <= self.files, sorted(named - self.files)

    @rule()
    def come_to_rest(self) -> None:
        """Two more checkpoints, one after the other: nothing is left that nobody names."""
        for number in sorted(self.under_way):
            self.give_up_one(number)
        for _ in range(2):
            self.trigger()
            number = self.next - 1
            for worker in range(len(self.said)):
                while self.said[worker]:
                    self.hear_one(worker)
                self.asked[worker].remove(number)
                self.wrote[worker][number] = {f"chk-{number}/w{worker}"}
                self.files |= self.wrote[worker][number]
                self.under_way[number][worker] = self.wrote[worker][number]
            self.complete_one(number)
        named = frozenset[str]().union(*self.retained.values())
        assert self.files == named, sorted(self.files - named)


TestRegistryAgainstModel = Model.TestCase
TestRegistryAgainstModel.settings = settings(max_examples=150, stateful_step_count=40)
