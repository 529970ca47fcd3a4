"""Regions over one simulated storage: their logs, crashes of each region, and the supervisor.

The connectors of logged edges and the supervisor are the real ones. A region is played: its
subtasks are readers and writers, its checkpoints are dictionaries, and a seeded choice takes the
next step. A step is a poll, one phase of a checkpoint (pre-commit, completion, commit), a crash
between any two of these, a crash with another parallelism, a look of the supervisor, or a commit
repeated by a coordinator that was given up for dead. Logs may be read ahead of checkpoints; then
pieces are written at steps of their own, and checkpoints of readers wait for their writers'. Some
crashes damage the newest checkpoint, so that the region falls back behind its readers.

Each source makes the numbers from 0 on; a region writes every record that it reads. So each output
must hold every number of every source that leads to it, once for each way there: the reference is
the graph's paths, counted. What was committed to an output must equal it too, unless its region
went back behind a commit: a sink cannot be cut. Nothing here measures time or runs user code.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.recovery.edge_log import Fenced, WentBack
from headrace.recovery.edge_log_files import EdgeLogFiles
from headrace.recovery.store import StoreUncertain

from ..connectors.edge_log import (
    EdgeLogCommitter,
    EdgeLogReader,
    EdgeLogWriter,
    place_of,
)
from ..connectors.sequence import SequenceSource
from ..contract.connectors import Source
from ..contract.errors import CommitLost, HeadraceError
from ..contract.operators import (
    OperatorContext,
    RestoredState,
    SourceReader,
    SourceStatus,
    Stateful,
    StateSnapshot,
    Transaction,
)
from ..coordinator import supervisor as s
from ..coordinator.coordinator_events import Outcome
from ..coordinator.region_choice import LogSeen, RegionSeen, RegionSpec
from .memory_store import MemoryStore

_JOB = "job"
_NUMBERS = pa.schema([("sequence", pa.int64())])
_STEPS_MAX = 8_000
#: A region that meets a cut so often is never rolled back.
_FAILURES_MAX = 200
#: Complete checkpoints that a region keeps; the second: in runs with damage.
_RETAIN = (2, 4)


@dataclass(frozen=True, slots=True)
class RegionShape:
    """One region: what it reads and writes.

    Attributes:
        rows: of its own source; 0: it has none.
        reads: logs.
        writes: a log; empty: the job's output.
        early: readers of its log do not wait for its checkpoints.
    """

    name: str
    rows: int
    reads: tuple[str, ...]
    writes: str = ""
    early: bool = False


class _NotYet(Exception):
    """Entries do not cover a checkpoint yet."""


def _pause() -> None:
    raise _NotYet


class _Later(Executor):
    """Runs calls at steps of their own, or when somebody waits for them."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = _Call(partial(fn, *args, **kwargs))
        self.calls.append(call)
        return call


class _Call(Future[Any]):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def run(self) -> None:
        if not self.done():
            self.set_result(self._call())

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)


@dataclass(slots=True)
class _Kept:
    """A complete checkpoint of a region."""

    number: int
    states: dict[str, list[RestoredState]]
    transactions: list[Transaction]
    #: {number: how often}, in all output up to here.
    output: Counter[int]
    finished: bool


@dataclass(slots=True)
class _Region:
    """A played region: its attempt, and what is durable of it."""

    shape: RegionShape
    store: MemoryStore
    rng: random.Random
    crashes: int
    #: How often a crash damages the newest checkpoint.
    damage: float
    epoch: int = 0
    parallelism: int = 1
    checkpoint: int = 0
    kept: list[_Kept] = field(default_factory=list)
    output: Counter[int] = field(default_factory=Counter)
    #: Taken and not yet complete; complete and not yet committed.
    taken: _Kept | None = None
    uncommitted: _Kept | None = None
    readers: dict[str, list[SourceReader]] = field(default_factory=dict)
    writers: list[EdgeLogWriter] = field(default_factory=list)
    committer: EdgeLogCommitter | None = None
    #: Committers of attempts before, with what they may commit once more.
    zombies: list[tuple[EdgeLogCommitter, list[Transaction]]] = field(default_factory=list)
    #: {log that it reads: whether ahead of checkpoints}.
    reads_early: Mapping[str, bool] = field(default_factory=dict)
    #: The state of the checkpoint that was taken.
    frozen: Mapping[str, Sequence[StateSnapshot]] = field(default_factory=dict)
    #: Writes under way, also of attempts before.
    writing: _Later = field(default_factory=_Later)
    ended: set[tuple[str, int]] = field(default_factory=set)
    is_over: bool = False
    #: What was committed to the output, and the output at the last commit.
    shown: Counter[int] = field(default_factory=Counter)
    shown_through: Counter[int] = field(default_factory=Counter)
    #: Number of the last commit; it went back behind one.
    shown_number: int = 0
    repeats: bool = False

    def go_back(self, checkpoint: int) -> None:
        """Take away the checkpoints above this one."""
        self.kept = [kept for kept in self.kept if kept.number <= checkpoint]
        number = self.kept[-1].number if self.kept else 0
        if self.shown_number > number:
            self.repeats = True
            self.shown_number = number
            self.shown_through = Counter(self.kept[-1].output if self.kept else ())

    def _show(self, kept: _Kept) -> None:
        if kept.number > self.shown_number:
            self.shown += kept.output - self.shown_through
            self.shown_number, self.shown_through = kept.number, Counter(kept.output)

    def begin(self) -> None:
        """Start the next attempt from the newest complete checkpoint."""
        self.epoch += 1
        self.parallelism = self.rng.randint(1, 3)
        self.taken = self.uncommitted = None
        self.ended = set()
        kept = self.kept[-1] if self.kept else None
        self.output = Counter() if kept is None else Counter(kept.output)
        states = {} if kept is None else kept.states
        if kept is not None:
            self._show(kept)
        self._recover(kept)
        sources: dict[str, Source] = {
            log: _PlayedSource(self._files(log), early) for log, early in self.reads_early.items()
        }
        if self.shape.rows:
            sources["numbers"] = SequenceSource(rows=self.shape.rows, batch_rows=4)
        self.readers = {
            name: [source.reader() for _ in range(self.parallelism)]
            for name, source in sources.items()
        }
        for name, readers in self.readers.items():
            self._open(name, readers, states)
        self.writers = []
        if self.shape.writes:
            files, early = self._files(self.shape.writes), self.shape.early
            self.writers = [
                EdgeLogWriter(files, early=early, thread=self.writing)
                for _ in range(self.parallelism)
            ]
            self._open(self.shape.writes, self.writers, states)

    def _recover(self, kept: _Kept | None) -> None:
        if not self.shape.writes:
            return
        if self.committer is not None:
            self.zombies.append((self.committer, [] if kept is None else kept.transactions))
        self.committer = EdgeLogCommitter(self._files(self.shape.writes))
        number = 0 if kept is None else kept.number
        named = [] if kept is None else kept.transactions
        self.committer.recover(number, named, epoch=self.epoch)
        self.committer.go_on(number)

    def _open(
        self,
        name: str,
        members: Sequence[Stateful],
        states: dict[str, list[RestoredState]],
    ) -> None:
        for index, member in enumerate(members):
            member.open(OperatorContext(_JOB, name, index, self.parallelism, 8, self.epoch))
            if name in states:
                member.restore(states[name])

    def steps(self) -> list[str]:
        """The steps that the region can take now."""
        if self.is_over:
            return []
        steps = ["poll", "poll", "poll"] if not self._all_ended else []
        if self.uncommitted is not None:
            steps.append("commit")
        elif self.taken is not None:
            steps.append("complete")
        else:
            steps.append("take")
        steps += ["write"] * bool(self.writing.calls)
        # Damage, and what was read early, show in regions that have come some way.
        is_late = self.damage or self.shape.early
        may_crash = self.crashes and (not is_late or self.rng.random() < 0.1)
        return [*steps, *(["crash"] if may_crash else [])]

    def take(self, step: str) -> None:
        """Take one step."""
        match step:
            case "poll":
                self._poll()
            case "take":
                self.taken = self._freeze()
            case "complete":
                assert self.taken is not None, "nothing was taken"
                try:
                    self.taken.states = self._states()
                except _NotYet:
                    return
                self.kept = [*self.kept[1 - _RETAIN[self.damage > 0] :], self.taken]
                self.taken, self.uncommitted = None, self.taken
            case "commit":
                self._commit()
            case "write":
                self.writing.calls.pop(0).run()
            case "crash":
                self.crashes -= 1
                if self.damage and len(self.kept) > 1 and self.rng.random() < self.damage:
                    self.go_back(self.kept[-2].number)
                self.begin()

    @property
    def _all_ended(self) -> bool:
        return len(self.ended) == sum(len(readers) for readers in self.readers.values())

    def _poll(self) -> None:
        name = self.rng.choice(sorted(self.readers))
        index = self.rng.randrange(self.parallelism)
        if (name, index) in self.ended:
            return
        reader = self.readers[name][index]
        polled = reader.poll(self.rng.randint(1, 5))
        for batch in polled.batches:
            self._write(batch.select(["sequence"]))
        reader.commit()
        if polled.status is SourceStatus.END:
            self.ended.add((name, index))

    def _write(self, batch: pa.RecordBatch) -> None:
        if not self.writers:
            self.output.update(batch.column(0).to_pylist())
            return
        for index, writer in enumerate(self.writers):
            rows = [n for n in batch.column(0).to_pylist() if n % self.parallelism == index]
            if rows:
                writer.write(pa.record_batch({"sequence": pa.array(rows, pa.int64())}))
                writer.commit()

    def _freeze(self) -> _Kept:
        self.checkpoint += 1
        transactions = [t for w in self.writers for t in w.precommit(self.checkpoint)]
        members: dict[str, Sequence[Stateful]] = dict(self.readers)
        if self.writers:
            members[self.shape.writes] = self.writers
        self.frozen = {
            name: [state for member in each for state in member.snapshot()]
            for name, each in members.items()
        }
        return _Kept(self.checkpoint, {}, transactions, Counter(self.output), self._all_ended)

    def _states(self) -> dict[str, list[RestoredState]]:
        """The state that was frozen. Raises: _NotYet; HeadraceError."""
        return {name: [_restored(state) for state in each] for name, each in self.frozen.items()}

    def _commit(self) -> None:
        assert self.uncommitted is not None, "nothing is complete"
        done, self.uncommitted = self.uncommitted, None
        if self.committer is not None:
            self.committer.commit(done.number, done.transactions)
        self._show(done)
        self.is_over = done.finished

    def repeat(self) -> None:
        """A coordinator that was given up for dead commits once more."""
        committer, transactions = self.rng.choice(self.zombies)
        try:
            committer.commit(self.checkpoint, transactions)
        except (Fenced, StoreUncertain):
            return

    def needs(self) -> list[dict[str, int]]:
        """What kept checkpoints need of the logs that the region reads."""
        return [
            {log: place_of(_rows(kept.states[log])).entry for log in self.shape.reads}
            for kept in self.kept
        ]

    def seen(self) -> RegionSeen:
        """Where the region can go back to."""
        places = [
            (kept.number, {log: place_of(_rows(kept.states[log])) for log in self.shape.reads})
            for kept in self.kept
        ]
        return RegionSeen(places, runs=True)

    def _files(self, log: str) -> EdgeLogFiles:
        return EdgeLogFiles(self.store, _JOB, log)


class RegionWorld:
    """A job of regions, played to its end by one seed.

    Args:
        shapes: regions, writers before readers; None: drawn by the seed.
        damage: how often a crash damages the newest checkpoint.

    Attributes:
        rolled_back: how many regions went back with another one.
        given_up: why the regions cannot go on together; empty: they can.
    """

    def __init__(
        self, seed: int, shapes: Sequence[RegionShape] | None = None, damage: float = 0.0
    ) -> None:
        self.rng = random.Random(seed)
        self.store = MemoryStore()
        self.shapes = list(shapes) if shapes is not None else draw_shapes(self.rng)
        self.regions = {
            shape.name: _Region(shape, self.store, self.rng, self.rng.randint(0, 3), damage)
            for shape in self.shapes
        }
        early = {shape.writes: shape.early for shape in self.shapes}
        for region in self.regions.values():
            region.reads_early = {log: early[log] for log in region.shape.reads}
        self.supervisor = s.Supervisor(
            {
                shape.name: RegionSpec((shape.writes,) if shape.writes else (), shape.reads)
                for shape in self.shapes
            }
        )
        self.damage = damage
        #: {region: how often it met a cut}.
        self.failures: Counter[str] = Counter()
        self.trimmed = self.rolled_back = 0
        self.given_up = ""
        #: A region has failed, and the supervisor has not looked.
        self._failed = False

    def run(self) -> None:
        """Play until every region is over. Raises: AssertionError, and whatever a region raises."""
        for region in self.regions.values():
            self._restart(region)
        settled: set[str] = set()
        for _ in range(_STEPS_MAX):
            self._step()
            for name, region in self.regions.items():
                if region.is_over and name not in settled:
                    settled.add(name)
                    self._supervise(s.RegionSettled(name, Outcome.FINISHED))
            if self.supervisor.is_over:
                self._check()
            if self.supervisor.is_over or self.given_up:
                return
        raise AssertionError(f"no end after {_STEPS_MAX} steps: {self.supervisor.describe()}")

    def _step(self) -> None:
        steps = [(n, step) for n, region in self.regions.items() for step in region.steps()]
        steps += [(name, "look") for name, region in self.regions.items() if region.shape.reads]
        steps += [(name, "repeat") for name, region in self.regions.items() if region.zombies]
        steps += [("", "look back")] * self._failed
        name, step = self.rng.choice(steps)
        if step == "look back":
            self._look_back()
            return
        region = self.regions[name]
        if step == "look":
            self._supervise(s.CheckpointsKept(name, region.needs()))
            return
        if step == "repeat":
            region.repeat()
            return
        if self.rng.random() < 0.02:
            self.store.fail("create", StoreUncertain, happened=self.rng.random() < 0.5)
        try:
            region.take(step)
        except StoreUncertain:
            self._restart(region)
        except CommitLost as reason:
            assert "no longer knows checkpoint" in str(reason), f"{name}: {reason}"
            self.given_up = str(reason)
        except HeadraceError as reason:
            may_go_back = self.damage or any(self.regions[name].reads_early.values())
            expected = may_go_back and isinstance(reason.__cause__, WentBack)
            assert expected, f"{name}: {reason}"
            self._failed = True
            self.failures[name] += 1
            assert self.failures[name] < _FAILURES_MAX, f"{name} is never rolled back: {reason}"
            self._restart(region)

    def _look_back(self) -> None:
        """The supervisor looks at all regions, readers before the logs that they read."""
        self._failed = False
        regions = {name: region.seen() for name, region in self.regions.items()}
        logs = {
            shape.writes: LogSeen(
                list(EdgeLogFiles(self.store, _JOB, shape.writes).newest_first())[::-1]
            )
            for shape in self.shapes
            if shape.writes
        }
        self._supervise(s.RegionsSeen(regions, logs))

    def _roll_back(self, checkpoints: Mapping[str, int]) -> None:
        for name, region in self.regions.items():
            if name in checkpoints:
                assert self.damage, f"{name} went back to {checkpoints[name]} without damage"
                assert not region.is_over, f"{name} was over"
                self.rolled_back += 1
                region.go_back(checkpoints[name])
                self._restart(region)

    def _restart(self, region: _Region) -> None:
        while True:
            try:
                region.begin()
            except StoreUncertain:
                continue
            return

    def _supervise(self, event: s.SupervisorEvent) -> None:
        for effect in self.supervisor.step(event):
            match effect:
                case s.EndLog(log):
                    self._end(log)
                case s.TrimLog(log, below):
                    self.trimmed += EdgeLogFiles(self.store, _JOB, log).trim(below)
                case s.RollBack(checkpoints):
                    self._roll_back(checkpoints)
                case s.GiveUp(reason):
                    self.given_up = reason
                case s.ReportFailover():
                    pass
                case s.StopRegion():
                    raise AssertionError("no region fails for good")
        self.supervisor.check()

    def _end(self, log: str) -> None:
        while True:
            try:
                EdgeLogCommitter(EdgeLogFiles(self.store, _JOB, log)).finish()
            except StoreUncertain:
                continue
            return

    def _check(self) -> None:
        for shape in self.shapes:
            if not shape.writes:
                region, expected = self.regions[shape.name], self._reference(shape)
                found = region.output
                assert found == expected, f"{shape.name}: {expected - found} {found - expected}"
                exact = region.shown >= expected if region.repeats else region.shown == expected
                assert exact, f"{shape.name} shows {region.shown}"

    def _reference(self, shape: RegionShape) -> Counter[int]:
        """What a region writes: the numbers of its source, and all of its logs."""
        numbers = Counter(range(shape.rows))
        for log in shape.reads:
            writer = next(other for other in self.shapes if other.writes == log)
            numbers += self._reference(writer)
        return numbers


@dataclass(frozen=True, slots=True)
class _PlayedSource:
    files: EdgeLogFiles
    early: bool
    schema: pa.Schema = _NUMBERS

    def reader(self) -> EdgeLogReader:
        return EdgeLogReader(self.files, early=self.early, pause=_pause)


def draw_shapes(rng: random.Random) -> list[RegionShape]:
    """Draw two to four regions; the last writes the output, and so does every second one."""
    count = rng.randint(2, 4)
    shapes: list[RegionShape] = []
    logs: list[str] = []
    for index in range(count):
        reads = tuple(sorted(rng.sample(logs, rng.randint(1, len(logs))))) if logs else ()
        rows = rng.randint(1, 40) if not reads or rng.random() < 0.3 else 0
        writes = f"log-{index}" if index < count - 1 else ""
        shapes.append(RegionShape(f"region-{index}", rows, reads, writes))
        logs += [writes] if writes else []
    return shapes


def _restored(state: StateSnapshot) -> RestoredState:
    return RestoredState(state.name, state.kind, state.table())


def _rows(states: Sequence[RestoredState]) -> list[dict[str, int]]:
    return [row for state in states for row in state.table.to_pylist()]
