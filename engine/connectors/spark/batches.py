"""Staged micro-batches of a stream: which there are, and which are removed.

    FOLDER/batches/000000000004-NONCE/...arrow   files of micro-batch 4, as executors wrote them
    FOLDER/batches/000000000004.json             its manifest: exists when all its files are there
    FOLDER/passed.json                           {"batch": 3, "files": 17}: batches 0 to 3, of 17
                                                 files in all, are read and removed

A batch goes when every checkpoint and savepoint in the job's folder has read it to its end, and all
batches before it have gone. First `passed.json` says so, durably, then files go: a batch that it
names is neither listed nor staged again, whatever a crash has left.

So readers forget the files of removed batches, and states stay small. A state tells up to which
batch its reader had forgotten them; by the number of files it is seen whether a state has read all
that was removed since, or comes from a savepoint elsewhere that is too old.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from ...contract.errors import JobFailed
from ...contract.operators import RestoredState, StateKind, StateSnapshot
from .. import durable
from ..filesystem import FileInfo, Location
from ..splits import Progress, progress_rows
from .staging import Manifest, remove_staged, staged

_BATCHES, _PASSED = "batches", "passed.json"
_STATE = "passed"
_SCHEMA = pa.schema([("batch", pa.int64()), ("files", pa.int64())])


@dataclass(frozen=True, slots=True, order=True)
class Passed:
    """Batches up to `batch`, of `files` files in all, are read and removed."""

    batch: int = -1
    files: int = 0

    def snapshot(self) -> StateSnapshot:
        """Make it a reader's state."""
        table = pa.Table.from_pylist([asdict(self)], schema=_SCHEMA)
        return StateSnapshot(_STATE, StateKind.UNION, lambda: table)

    def has(self, path: str) -> bool:
        """Whether the file is one of a removed batch."""
        number = batch_of(path)
        return number is not None and number <= self.batch


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """What the states of all readers together had read.

    Attributes:
        passed: the furthest of what the readers had forgotten.
        rows: progress in the files of later batches.
    """

    passed: Passed
    rows: Sequence[Progress]

    @staticmethod
    def of(states: Sequence[RestoredState]) -> ReadSoFar:
        """Read the states, as `Passed.snapshot` and `FileReader.snapshot` made them."""
        told = [r for s in states if s.name == _STATE for r in s.table.to_pylist()]
        passed = max((Passed(**row) for row in told), default=Passed())
        rows = [r for s in states if s.name != _STATE for r in progress_rows(s.table)]
        return ReadSoFar(passed, [row for row in rows if not passed.has(row.split.path)])

    def done(self) -> set[str]:
        """Paths of the files of later batches that are read to the end."""
        return {row.split.path for row in self.rows if row.done}

    def has_read_all(self, passed: Passed) -> bool:
        """Whether all files of removed batches are read to the end."""
        since = sum(passed.has(path) for path in self.done())
        return self.passed >= passed or self.passed.files + since == passed.files


@dataclass(frozen=True, slots=True)
class Batches(Location):
    """The batches of a stream, below its folder. As a location: the files of complete batches, in
    the order of the batches.
    """

    #: {name of a manifest: the manifest}; a manifest never changes.
    _read: dict[str, Manifest] = field(default_factory=dict, compare=False)

    @staticmethod
    def below(folder: Location) -> Batches:
        """The batches of the stream that is staged in this folder."""
        return Batches(folder.fs, f"{folder.root}/{_BATCHES}")

    @property
    def _folder(self) -> str:
        return self.root.removesuffix(f"/{_BATCHES}")

    def files(self) -> list[FileInfo]:
        """Return the files of all batches that are complete now, and not removed."""
        return [file for manifest in self._manifests().values() for file in manifest.listing]

    def passed(self) -> Passed:
        """Return what is removed. Raises: OSError."""
        try:
            return Passed(**json.loads(self.fs.cat_file(f"{self._folder}/{_PASSED}")))
        except FileNotFoundError:
            return Passed()

    def is_staged(self, number: int) -> bool:
        """The batch is complete, or is removed already. Raises: StorageUnreachable, OSError."""
        return number <= self.passed().batch or staged(self, manifest_name(number)) is not None

    def remove_passed(self, kept: Sequence[Sequence[RestoredState]]) -> None:
        """Remove batches that all these states have read to their end; none: remove nothing.

        Raises: OSError; a later call goes on.
        """
        if not kept:
            return
        states = [ReadSoFar.of(states) for states in kept]
        done = [state.done() for state in states]
        passed = self.passed()
        for number, manifest in self._manifests().items():
            for state, paths in zip(states, done, strict=True):
                if state.passed.batch < number and not manifest.files.keys() <= paths:
                    return self._remove(passed)
            passed = Passed(number, passed.files + len(manifest.files))
        return self._remove(passed)

    def remove_all(self) -> None:
        """Remove all batches, which the job has read to its end. Raises: StorageUnreachable."""
        passed = self.passed()
        for number, manifest in self._manifests().items():
            passed = Passed(number, passed.files + len(manifest.files))
        self._note(passed)
        remove_staged(self)

    def _manifests(self) -> dict[int, Manifest]:
        """{number: manifest} of the complete batches that are not removed, in order."""
        names = durable.names(self, self.root)
        # Behind the listing: what has been removed meanwhile must not be read.
        passed = self.passed().batch
        found = [name for name in names if name.endswith(".json") and _number(name) > passed]
        for name in self._read.keys() - set(found):
            del self._read[name]
        for name in found:
            if name not in self._read:
                manifest = staged(self, name)
                # Without a whole manifest, the batch is still being staged.
                if manifest is not None:
                    self._read[name] = manifest
        return {_number(name): self._read[name] for name in found if name in self._read}

    def _note(self, passed: Passed) -> None:
        if passed > self.passed():
            content = json.dumps(asdict(passed)).encode()
            durable.publish(self, f"{self._folder}/{_PASSED}", content)

    def _remove(self, passed: Passed) -> None:
        self._note(passed)
        for name in durable.names(self, self.root):
            number = batch_of(f"{name}/")
            if number is not None and number <= passed.batch:
                self.fs.rm(f"{self.root}/{name}", recursive=True)
            elif name.endswith(".json") and _number(name) <= passed.batch:
                durable.remove(self, f"{self.root}/{name}")


def manifest_name(number: int) -> str:
    """The name of a batch's manifest."""
    return f"{number:012d}.json"


def batch_of(path: str) -> int | None:
    """The batch of a staged file, by its folder; None: staged by an early version."""
    number, dash, _ = path.rsplit("/", 2)[-2].partition("-")
    return int(number) if dash and number.isdigit() else None


def check_read(read: ReadSoFar, passed: Passed) -> None:
    """Refuse a state that lacks what is removed. Raises: JobFailed."""
    if not read.has_read_all(passed):
        raise JobFailed(
            f"micro-batches up to {passed.batch} are removed, since every checkpoint in the job's"
            " folder has read them, and this older one has not; restore a newer checkpoint, or"
            " begin anew with fresh=True"
        )


def _number(manifest: str) -> int:
    number = manifest.removesuffix(".json")
    return int(number) if number.isdigit() else -1
