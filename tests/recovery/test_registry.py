"""The registry against a dumb model: everybody who writes, names and deletes files, at random."""

from __future__ import annotations

from collections.abc import Callable

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

NOTHING = Deletable()


def completed(registry: SharedStateRegistry, number: int, *files: str) -> None:
    registry.begin(number)
    registry.complete(number, frozenset(files))


def swept(registry: SharedStateRegistry) -> Deletable:
    """What goes, storage refusing nothing."""
    gone = registry.collect()
    registry.withdrawn(gone, gone)
    what = registry.deletable()
    registry.deleted(NOTHING)
    return what


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
    assert swept(registry) == Deletable((1,), frozenset({"shared/1-b"}), ())
    completed(registry, 3)
    registry.let_go(2)
    assert swept(registry) == Deletable((2,), frozenset(), ("shared/1-b",))
    assert swept(registry) == NOTHING


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
    assert swept(registry) == Deletable((1,), frozenset({"chk-1/a"}), ())
    registry.complete(4, frozenset({"chk-1/a"}))
    assert swept(registry) == Deletable((2,), frozenset(), ())


def test_what_was_written_for_a_given_up_checkpoint_is_kept_until_a_newer_one_is_known_to_all() -> (
    None
):
    registry = SharedStateRegistry()
    for number in (1, 2, 3):
        registry.begin(number)
    registry.give_up(2)
    registry.complete(1, frozenset())
    assert swept(registry) == NOTHING, "3, and whatever comes next, may name what 2 wrote"
    registry.begin(4)
    registry.complete(3, frozenset({"chk-2/a"}))
    assert swept(registry) == NOTHING, "4 may, too: it was triggered before 3 was complete"
    registry.complete(4, frozenset())
    assert swept(registry) == Deletable((2,), frozenset({"chk-2/a"}), ())


def test_given_up_checkpoints_that_build_on_each_other_go_together() -> None:
    registry = SharedStateRegistry()
    for number in (1, 2):
        registry.begin(number)
        registry.give_up(number)
    completed(registry, 3)
    assert swept(registry) == Deletable((1, 2), frozenset(), ())
    assert swept(registry) == NOTHING
    completed(registry, 4)
    assert swept(registry) == Deletable((1, 2)), "an upload may have been running all the while"
    completed(registry, 5)
    assert swept(registry) == NOTHING


def test_the_first_checkpoint_of_an_attempt_goes_twice_as_older_attempts_may_log_under_it() -> None:
    registry = SharedStateRegistry()
    registry.attempt_begins(1)
    completed(registry, 1, "chk-1/a")
    completed(registry, 2)
    completed(registry, 3, "chk-1/a")
    for number in (1, 2):
        registry.let_go(number)
    assert swept(registry) == Deletable((1, 2), frozenset({"chk-1/a"}))
    completed(registry, 4)
    assert swept(registry) == Deletable((1,), frozenset({"chk-1/a"})), "3 names it"
    completed(registry, 5)
    assert swept(registry) == NOTHING, "twice is enough"


def test_a_checkpoint_of_an_earlier_run_may_have_been_the_first_of_an_attempt() -> None:
    registry = SharedStateRegistry()
    registry.adopt(1, frozenset())
    completed(registry, 2)
    for number in (1, 2):
        registry.let_go(number)
    assert swept(registry) == Deletable((1, 2))
    completed(registry, 3)
    assert swept(registry) == Deletable((1,))


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
    assert swept(registry) == NOTHING
    registry.complete(6, frozenset())
    assert swept(registry) == Deletable((1, 3, 4), frozenset(), ())


def test_what_was_given_up_waits_for_a_checkpoint_before_which_everybody_has_heard_that() -> None:
    registry = SharedStateRegistry()
    for number in (1, 2):
        registry.begin(number)
    registry.complete(2, frozenset())
    registry.give_up(1)
    assert swept(registry) == NOTHING, "somebody may still be writing"
    completed(registry, 3)
    assert swept(registry) == Deletable((1,), frozenset(), ())


def test_what_was_written_under_the_number_of_a_savepoint_goes_with_the_next_complete_one() -> None:
    registry = SharedStateRegistry()
    registry.begin(1)
    registry.begin(2)
    registry.complete(2, frozenset())
    registry.save(1)
    assert swept(registry).checkpoints == (1,), "everybody had a part in it, and in a later one"


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
    assert swept(registry) == NOTHING, (
        "a later one may name what was written for 4, and what that names"
    )
    registry.end()
    assert swept(registry) == Deletable((1, 2, 4))


def test_a_checkpoint_that_does_not_count_any_more_stays_where_it_is() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1, "chk-1/a")
    completed(registry, 2, "chk-1/a")
    registry.let_go(1)
    registry.forget(2)
    registry.adopt(1, frozenset({"chk-1/a"}))
    assert swept(registry) == NOTHING
    completed(registry, 3)
    registry.let_go(1)
    assert swept(registry) == Deletable((1,), frozenset(), ())


def test_what_somebody_abandoned_goes_at_once_but_for_what_complete_ones_name() -> None:
    registry = SharedStateRegistry()
    for number in (2, 4):
        registry.adopt_abandoned(number)
    registry.adopt(3, frozenset({"chk-2/a", "shared/1-b"}))
    assert swept(registry) == Deletable((2, 4), frozenset({"chk-2/a"}), ())
    completed(registry, 5)
    registry.let_go(3)
    assert swept(registry) == Deletable((3,), frozenset(), ("chk-2/a", "shared/1-b"))


def test_what_a_checkpoint_names_counts_until_its_metadata_is_certainly_gone() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1, "chk-1/a", "shared/1-b")
    completed(registry, 2, "chk-1/a", "chk-2/c")
    completed(registry, 3, "chk-2/c")
    for number in (1, 2):
        registry.let_go(number)
    assert registry.collect() == (1, 2)
    assert registry.collect() == (), "each is named once"
    registry.withdrawn((1, 2), (1,))
    assert registry.deletable() == Deletable((1,), frozenset({"chk-1/a"}))
    registry.deleted(NOTHING)
    assert registry.collect() == (2,), "it is asked for again"
    registry.withdrawn((2,), (2,))
    assert registry.deletable() == Deletable((2,), frozenset({"chk-2/c"}), ("chk-1/a",))


def test_what_storage_did_not_delete_is_handed_out_again() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1, "chk-1/a")
    completed(registry, 2, "chk-1/a", "chk-2/b")
    completed(registry, 3)
    registry.let_go(1)
    assert swept(registry) == Deletable((1,), frozenset({"chk-1/a"}))
    registry.let_go(2)
    gone = registry.collect()
    registry.withdrawn(gone, gone)
    everything = Deletable((2,), frozenset(), ("chk-1/a",))
    assert registry.deletable() == everything
    assert registry.deletable() == NOTHING, "nobody has answered"
    registry.deleted(everything)
    assert registry.deletable() == everything
    registry.deleted(Deletable(savepoints=((2, "memory://elsewhere"),)))
    assert registry.deletable() == Deletable((2,)), "a savepoint goes by its number"


def test_a_checkpoint_that_is_about_to_go_cannot_be_returned_to() -> None:
    registry = SharedStateRegistry()
    completed(registry, 1)
    registry.let_go(1)
    assert registry.collect() == (1,)
    with pytest.raises(AssertionError, match="about to go"):
        registry.adopt(1, frozenset())


def test_numbers_are_begun_in_order() -> None:
    registry = SharedStateRegistry()
    registry.adopt(4, frozenset())
    with pytest.raises(AssertionError, match="out of order"):
        registry.begin(4)


class Model(RuleBasedStateMachine):
    """A coordinator with its registry, workers that hear it late, and a store.

    Each worker hears what the coordinator says in order: triggers, completions, ends. When it has
    heard a trigger it may write its part at any time: own files, and names of any that it knows to
    be stored. Its report reaches the coordinator later. What it was writing when it hears that
    nobody waits for it any more comes some time after, before two more are complete. Storage
    refuses any deletion, or deletes and does not say so.
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
        #: Per worker: triggered and not written; {checkpoint: what it wrote or named}; what it may
        #: build on.
        self.asked: list[list[int]] = [[] for _ in range(workers)]
        self.wrote: list[dict[int, set[str]]] = [{} for _ in range(workers)]
        self.known: list[set[str]] = [set() for _ in range(workers)]
        #: {file that is being written, and of no use to anybody any more: checkpoints completed
        #: since}
        self.late: dict[str, int] = {}
        #: What storage was asked for and has not answered.
        self.order: tuple[int, ...] | Deletable | None = None

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
                if number in self.asked[worker]:
                    self.asked[worker].remove(number)
                    self.late[f"chk-{number}/late-{worker}"] = 0

    @precondition(lambda self: self.late)
    @rule()
    def come_late(self) -> None:
        self.files.add(self.late.popitem()[0])

    @precondition(lambda self: any(self.asked))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """A worker writes its part of something that it has heard the trigger of, and not the
        end.
        """
        workers = [worker for worker, asked in enumerate(self.asked) if asked]
        worker = data.draw(st.sampled_from(workers))
        self.write_one(data, worker, data.draw(st.sampled_from(self.asked[worker])))

    def write_one(self, data: st.DataObject, worker: int, number: int) -> None:
        """Its report arrives at once: a late one makes a difference to nobody but the checkpoint
        itself.
        """
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
        self.complete_whole(data, data.draw(st.sampled_from(sorted(self.under_way))))

    @rule(data=st.data(), times=st.integers(1, 3))
    def go_on(self, data: st.DataObject, times: int) -> None:
        """Checkpoints as they come and go if little goes wrong but deletions."""
        for _ in range(times):
            self.trigger()
            self.complete_whole(data, self.next - 1)
            while self.order is not None:
                self.answer(data)

    def complete_whole(self, data: st.DataObject, number: int) -> None:
        """Whoever has not written its part does so now, with what it has heard up to the
        trigger.
        """
        parts = self.under_way[number]
        for worker in [w for w in range(len(self.said)) if w not in parts]:
            while number not in self.asked[worker]:
                self.hear_one(worker)
            self.write_one(data, worker, number)
        self.complete_one(number)

    def complete_one(self, number: int) -> None:
        self.files.update(path for path, since in self.late.items() if since)
        self.late = {path: 1 for path, since in self.late.items() if not since}
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
        if self.order is None:
            self.order = self.registry.collect() or self.handed_out()

    def handed_out(self) -> Deletable | None:
        what = self.registry.deletable()
        return None if what.is_empty else what

    @precondition(lambda self: self.order is not None)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        outcomes = st.sampled_from(("done", "done", "refused", "unknown"))
        self.answer_one(lambda: data.draw(outcomes))

    def answer_one(self, outcome: Callable[[], str]) -> None:
        order, self.order = self.order, None
        if isinstance(order, Deletable):
            self.registry.deleted(self.delete(order, outcome))
        elif order is not None:
            told = {number: outcome() for number in order}
            for number in [n for n, how in told.items() if how != "refused"]:
                self.there.pop(number, None)
            self.registry.withdrawn(order, [n for n, how in told.items() if how == "done"])
            self.order = self.handed_out()

    def delete(self, what: Deletable, outcome: Callable[[], str]) -> Deletable:
        """Returns what storage says is left."""
        folders = {n: outcome() for n in what.checkpoints}
        files = {path: outcome() for path in what.files}
        for number in [n for n, how in folders.items() if how != "refused"]:
            prefixes = (f"chk-{number}/", f"shared/{number}-")
            self.files -= {f for f in self.files if f.startswith(prefixes)} - what.keep
        self.files -= {path for path, how in files.items() if how != "refused"}
        left = tuple(n for n, how in folders.items() if how != "done")
        return Deletable(left, what.keep, tuple(f for f, how in files.items() if how != "done"))

    @rule()
    def die(self) -> None:
        """Another driver goes on from the newest complete one, with workers that know that one
        alone. What had been ordered was not done.
        """
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
        self.under_way, self.order, self.late = {}, None, {}
        for worker in range(len(self.said)):
            self.said[worker], self.asked[worker], self.wrote[worker] = [], [], {}
            self.known[worker] = set(self.there[kept[-1]]) if kept else set()

    @invariant()
    def what_counts_is_there(self) -> None:
        named = frozenset[str]().union(*self.there.values())
        for parts in self.under_way.values():
            named = named.union(*parts.values())
        assert named <= self.files, sorted(named - self.files)

    @rule()
    def come_to_rest(self) -> None:
        """Two more checkpoints, one after the other, and storage that deletes: nothing is left that
        nobody names.
        """
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
            while self.order is not None:
                self.answer_one(lambda: "done")
            self.complete_one(number)
            while self.order is not None:
                self.answer_one(lambda: "done")
        named = frozenset[str]().union(*self.retained.values())
        assert self.files == named, sorted(self.files - named)


TestRegistryAgainstModel = Model.TestCase
TestRegistryAgainstModel.settings = settings(max_examples=150, stateful_step_count=40)
