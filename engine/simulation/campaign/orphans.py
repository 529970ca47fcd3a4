"""Check that files without a name go, and soon.

A file in a job's folder is *accounted for* as long as a checkpoint or savepoint with metadata names
the file or lies in the same folder, or the file's number is under way, or still to come. Metadata
is accounted for while its checkpoint is retained. A *round* of a driver is over when a checkpoint
triggered in the round is complete, no other is under way then or was triggered since, and storage
has carried out every deletion that followed. A file that is not accounted for is gone two rounds
later, and every such file of the last sweep is gone when the job ends well. A refused deletion
extends the time, and a new driver begins anew. Overlapping checkpoints extend the time too: a
checkpoint triggered before the end of an abandoned checkpoint may build upon its files, and the
registry keeps all files.

Exempt are late files, which come when their number has been over for two sweeps or belonged to an
earlier driver, and an earlier driver's leftovers of a savepoint.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion, decode_metadata
from headrace.recovery.layout import CheckpointKind, owner, parse_checkpoint_path, store_path
from headrace.recovery.registry import SharedStateRegistry, references

from ...coordinator import coordinator_events as d
from ...coordinator.coordinator import Coordinator
from ...coordinator.retention import Retention
from ...coordinator.rules import Phase
from ..coverage import Coverage
from ..watch import Violation
from .storage import SimulatedStorage

#: So many whole rounds a file may outlive its last account.
ROUNDS_MAX = 2


class Orphans:
    """Checks the deletions of the newest driver of `job`."""

    def __init__(self, storage: SimulatedStorage, job: str, coverage: Coverage) -> None:
        self._storage = storage
        self._prefix = store_path(job, "x").removesuffix("x")
        self._coverage = coverage
        self._machine: Coordinator | None = None
        #: Complete checkpoints that are not the driver's to delete.
        self._spared: frozenset[int] = frozenset()
        #: {file: rounds that were over when it was last accounted for}
        self._since: dict[str, int] = {}
        self._exempt: set[str] = set()
        #: {path of metadata: files that it names}
        self._names: dict[str, frozenset[str]] = {}
        self._rounds = 0
        #: Sweeps that storage has answered, whatever it said.
        self._sweeps = 0
        #: {number: answered sweeps when the number was last under way, retained or still to come}
        self._live: dict[int, int] = {}
        self._checkpoint_next = 0
        #: Numbers of this driver's savepoints. A formerly frozen driver may have used equal
        #: numbers.
        self._savepoints: set[int] = set()
        #: The first number triggered in the present round.
        self._round_from = 1
        #: The newest complete checkpoint when the sweep under way began; 0: others had been
        #: triggered since. None: there is no sweep.
        self._sweep: int | None = None
        self._refused = False
        #: What was there when the job's last sweep began.
        self._last: frozenset[str] | None = None

    def begins(self, machine: Coordinator, spared: Collection[int]) -> None:
        """Another driver goes on."""
        self._machine, self._spared = machine, frozenset(spared)
        self._since, self._live, self._savepoints = {}, {}, set()
        self._rounds, self._round_from = 0, self._next_number
        self._sweep, self._refused, self._last = None, False, None
        self._checkpoint_next = self._next_number
        self._look()
        known = self._registry._complete.keys() | self._registry._limits.keys()
        self._exempt = {path for path in self._since if not self._is_adopted(path, known)}

    def _is_adopted(self, path: str, known: Collection[int]) -> bool:
        """Return whether the driver takes the file over; never leftovers of an earlier
        savepoint.
        """
        return self._number(path) in known and not self._is_of_savepoint(path)

    @staticmethod
    def _is_of_savepoint(path: str) -> bool:
        parsed = parse_checkpoint_path(path)
        return parsed is not None and parsed.kind is CheckpointKind.SAVEPOINT

    # --- what the driver does ---------------------------------------------------------------------

    def ordered(self, machine: Coordinator, effect: d.CoordinatorEffect) -> None:
        """The driver is about to carry out an effect."""
        if machine is not self._machine:
            return
        match effect:
            case d.WithdrawCheckpoints(_, patient) | d.DeleteFiles(_, patient):
                self._look()
                if self._sweep is None:
                    self._sweep, self._refused = self._standing(), False
                if patient and self._last is None:
                    self._last = frozenset(self._since)
            case d.JobEnded(outcome):
                self._look()
                if outcome is not d.Outcome.FAILED and not self._refused:
                    self._check_end()

    def told(self, machine: Coordinator, event: d.CoordinatorEvent, before: Phase) -> None:
        """The machine has taken an event; `before`: its earlier phase."""
        if machine is not self._machine:
            return
        match event:
            case d.CheckpointsWithdrawn(asked, gone):
                self._refused = self._refused or asked != gone
            case d.FilesDeleted(left):
                self._refused = self._refused or not left.is_empty
            case d.MetadataWritten() if before is Phase.RUNNING:
                self._refused = self._refused and self._sweep is not None
            case _:
                return
        if not machine._retention.awaits:
            self._swept()

    def _swept(self) -> None:
        newest = self._standing() if self._sweep is None else self._sweep
        self._sweep = None
        self._sweeps += 1
        self._look()
        if self._refused:
            self._coverage.count("rounds in which a deletion was refused")
        elif newest >= self._round_from:
            self._round_is_over()

    def _round_is_over(self) -> None:
        self._coverage.count("rounds of deletion")
        self._rounds += 1
        self._round_from = self._next_number
        for path, since in self._since.items():
            if self._rounds - since > ROUNDS_MAX and not self._is_fine(path):
                raise Violation(
                    f"{path} is there still, {self._rounds - since} rounds after all who may name"
                    " it"
                )

    def _check_end(self) -> None:
        for path in self._since if self._last is None else self._last & self._since.keys():
            if not self._is_fine(path):
                raise Violation(
                    f"the job has ended, and {path} is there still, which nobody may name"
                )

    # --- who may name what ------------------------------------------------------------------------

    @property
    def _retention(self) -> Retention:
        assert self._machine is not None, "some driver has begun"
        return self._machine._retention

    @property
    def _registry(self) -> SharedStateRegistry:
        return self._retention._registry

    @property
    def _next_number(self) -> int:
        """Number of the next checkpoint.

        The registry learns of numbers of earlier drivers only when the next checkpoint begins.
        """
        assert self._machine is not None, "some driver has begun"
        return self._machine._checkpoints._checkpoint_next

    def _standing(self) -> int:
        registry = self._registry
        alone = not registry._under_way and registry._newest_complete + 1 == self._next_number
        return registry._newest_complete if alone else 0

    def _look(self) -> None:
        """Note the present files, and whether each is accounted for."""
        objects = self._storage.objects
        self._names = {path: names for path, names in self._names.items() if path in objects}
        self._note_numbers()
        for path in objects:
            number = self._number(path) if path.startswith(self._prefix) else None
            if number is None:
                continue
            if path.endswith("/metadata") and path not in self._names:
                self._names[path] = self._named_in(path)
            if path not in self._since:
                self._since[path] = self._rounds
                late = self._sweeps - self._live.get(number, -2) >= 2
                of_another = self._is_of_savepoint(path) and number not in self._savepoints
                if of_another or (late and number < self._checkpoint_next):
                    self._exempt.add(path)
        named = frozenset[str]().union(*self._names.values())
        self._since = {
            path: self._rounds if self._is_accounted_for(path, named) else since
            for path, since in self._since.items()
            if path in objects
        }

    def _is_fine(self, path: str) -> bool:
        named = frozenset[str]().union(*self._names.values())
        return path in self._exempt or self._is_accounted_for(path, named)

    def _is_accounted_for(self, path: str, named: frozenset[str]) -> bool:
        registry, number = self._registry, self._number(path)
        assert number is not None, path
        if number in registry._under_way or number >= self._next_number or path in named:
            return True
        parsed = parse_checkpoint_path(path)
        if parsed is None:  # a shared file
            return f"{self._prefix}chk-{number}/metadata" in self._storage.objects
        if parsed.name == "metadata" and parsed.kind is CheckpointKind.CHECKPOINT:
            assert self._machine is not None, "some driver has begun"
            newest = self._machine._checkpoints.newest
            retained = number in self._retention._retained or number in self._spared
            return retained or number > (0 if newest is None else newest.checkpoint)
        return f"{path.rpartition('/')[0]}/metadata" in self._storage.objects

    def _number(self, path: str) -> int | None:
        parsed = parse_checkpoint_path(path)
        return owner(path.removeprefix(self._prefix)) if parsed is None else parsed.number

    def _note_numbers(self) -> None:
        self._savepoints |= self._retention._savepoints.keys()
        before, self._checkpoint_next = self._checkpoint_next, self._next_number
        live = {*self._registry._under_way, *self._retention._retained}
        for number in live.union(range(before, self._checkpoint_next)):
            self._live[number] = self._sweeps

    def _named_in(self, path: str) -> frozenset[str]:
        try:
            metadata = decode_metadata(self._storage.objects[path], path)
        except (CorruptMetadata, UnsupportedVersion):
            return frozenset()
        return frozenset(store_path(metadata.job, file) for file in references(metadata))
