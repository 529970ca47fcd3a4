"""A job whose output tells whether every record was counted exactly once: what campaigns that kill
things run.

A paced sequence is keyed, a stateful operator numbers the records of each key and sums them up, and
the result goes to Parquet files. Every record carries its number, its place in its key's history
and the sum so far. So the files alone show what was lost, what was doubled, what overtook another
record of its key, and whether any state went back to another moment than the input did.

Not here: who kills what (`victims`), and when (`kills`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource

from .partitions import PartitionedSource

KEYS = 200
#: What the clock of a hurried source runs faster by.
_HURRY = 10_000
#: Pauses are saved up to this length: shorter ones would take longer than they say.
_NAP_S = 0.005

_OUT = pa.schema(
    [
        pa.field(name, pa.int64(), nullable=False)
        for name in ("key", "sequence", "position", "total")
    ]
)

Numbers = npt.NDArray[np.int64]


#: What a subtask of the stateful operator has come to, told by a file: its state is back, it
#: handles its first record, or its `_REPLAYING`th.
Moment = Literal["restored", "first row", "replaying"]

_REPLAYING = 40


class Mark(NamedTuple):
    """A subtask came to a moment; times are wall time in nanoseconds.

    `opened_ns`: when it was opened, which all its marks share.
    """

    ns: int
    pid: int
    opened_ns: int


class History(hr.StatefulProcessor):
    """Numbers the records of each key and sums them up; marks in a folder how far its attempt has
    come (`Moment`).

    Args:
        marks: the folder, which exists.
        pause_s: what a record costs, until the file `eased` is there.
    """

    position = hr.value_state(pa.int64(), default=0)
    total = hr.value_state(pa.int64(), default=0)

    def __init__(self, marks: str, pause_s: float, eased: str) -> None:
        self._marks = marks
        self._handled = self._opened_ns = 0
        self._pause_s = pause_s
        self._owed_s = 0.0
        self._eased = eased

    def open(self) -> None:
        """Tell that the state is back."""
        self._opened_ns = time.time_ns()
        self._mark("restored")

    def process(self, key: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Add one record to its key's history."""
        self._handled += 1
        if self._handled in (1, _REPLAYING):
            self._mark("first row" if self._handled == 1 else "replaying")
        self._owed_s += self._pause_s
        if self._owed_s > _NAP_S:
            self._nap()
        self.position.value += 1
        self.total.value += row["sequence"]
        yield {
            "key": key,
            "sequence": row["sequence"],
            "position": self.position.value,
            "total": self.total.value,
        }

    def _mark(self, moment: Moment) -> None:
        Path(self._marks, f"{moment}-{time.time_ns()}-{os.getpid()}-{self._opened_ns}").touch()

    def _nap(self) -> None:
        if not os.path.exists(self._eased):
            time.sleep(self._owed_s)
        self._owed_s = 0.0


@dataclass(frozen=True, slots=True)
class HurriedBy:
    """A monotonic clock that runs much faster once the file `flag` exists: the source then makes
    all that is left.
    """

    flag: str

    def __call__(self) -> int:
        now_ns = time.monotonic_ns()
        return now_ns * _HURRY if os.path.exists(self.flag) else now_ns


@dataclass(frozen=True, slots=True)
class AuditedJob:
    """The job in a folder of its own, and what it left there.

    Attributes:
        folder: for output, checkpoints and marks.
        rows: records of the input.
        rate_per_s: of the whole job, until `hurry`.
        partitions: the input has so many, which keep their order through a rescale; None: one a
            subtask, which do not.
        pause_s: what a record costs in the stateful operator.
    """

    folder: Path
    rows: int
    rate_per_s: float
    parallelism: int = 2
    interval: str = "1s"
    partitions: int | None = None
    pause_s: float = 0.0

    @property
    def output(self) -> Path:
        """Where the Parquet files are."""
        return self.folder / "out"

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.folder / "checkpoints"

    @property
    def _marks(self) -> Path:
        return self.folder / "marks"

    def build(self, **options: Any) -> hr.Job:
        """Make the job; `options` replace those of `hr.Job`."""
        self._marks.mkdir(parents=True, exist_ok=True)
        histories = (
            hr.from_source(self._source(), name="numbers")
            .key_by("key")
            .process(
                History(str(self._marks), self.pause_s, str(self._eased)),
                schema=_OUT,
                name="history",
            )
        )
        stated: dict[str, Any] = {
            "parallelism": self.parallelism,
            "checkpoints": hr.Checkpoints(str(self.checkpoints), interval=self.interval),
        }
        sink = histories.write.parquet(str(self.output), name="out")
        return hr.Job("audited", sink, **(stated | options))

    @property
    def _hurry(self) -> Path:
        return self.folder / "hurry"

    @property
    def _eased(self) -> Path:
        return self.folder / "eased"

    def _source(self) -> hr.Source:
        hurry = str(self._hurry)
        if self.partitions is not None:
            return PartitionedSource(self.rows, self.partitions, KEYS, self.rate_per_s, hurry)
        return SequenceSource(
            rows=self.rows, rate_per_s=self.rate_per_s, key_count=KEYS, clock=HurriedBy(hurry)
        )

    def ease(self) -> None:
        """From now on records cost nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._eased.touch()

    def hurry(self) -> None:
        """Let the source make all that is left at once, and records cost nothing any more."""
        self.ease()
        self._hurry.touch()

    def marks(self, moment: Moment) -> list[Mark]:
        """Of each subtask of any attempt that has come to `moment`, in order."""
        found = [mark.name.split("-") for mark in self._marks.iterdir()]
        return sorted(Mark(*map(int, numbers)) for name, *numbers in found if name == moment)

    def first_rows_ns(self) -> list[int]:
        """When (wall time) a subtask of some attempt handled its first record, in order."""
        return [mark.ns for mark in self.marks("first row")]

    def visible(self) -> pa.Table:
        """All records that are visible now."""
        files = sorted(self.output.glob("part-*.parquet"))
        return pa.concat_tables([_OUT.empty_table(), *(pq.read_table(file) for file in files)])

    def verdict(self) -> Verdict:
        """Compare the visible records with all that should be there."""
        return judge(self.visible(), self.rows, producers=self.partitions or self.parallelism)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with an output; all zero when nothing is. The lists name the first few sequence
    numbers.

    Attributes:
        lost: records of the input that are not there.
        doubled: records that are there again.
        foreign: records that the input does not have.
        misplaced: records whose place in their key's history, order or sum is not that of a run
            without failures.
    """

    rows: int
    lost: int
    doubled: int
    foreign: int
    misplaced: int
    examples: tuple[int, ...]

    @property
    def exact(self) -> bool:
        """Exactly once, in order, with the right state."""
        return not (self.lost or self.doubled or self.foreign or self.misplaced)


def judge(table: pa.Table, rows: int, *, producers: int = 2) -> Verdict:
    """Judge an output against the numbers 0 to `rows` - 1, of which `producers` source subtasks
    make every so-many-th each.
    """
    sequence: Numbers = table["sequence"].to_numpy()
    times = np.bincount(sequence[(sequence >= 0) & (sequence < rows)], minlength=rows)
    lost, doubled = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
    misplaced = _misplaced(table, producers)
    return Verdict(
        rows=len(sequence),
        lost=len(lost),
        doubled=int((times[doubled] - 1).sum()),
        foreign=int(((sequence < 0) | (sequence >= rows)).sum()),
        misplaced=len(misplaced),
        examples=tuple(int(n) for n in [*lost[:5], *doubled[:5], *misplaced[:5]]),
    )


def _misplaced(table: pa.Table, producers: int) -> Numbers:
    """Sequence numbers of the records whose history is impossible."""
    if not table.num_rows:
        return np.empty(0, dtype=np.int64)
    ordered = table.sort_by([("key", "ascending"), ("position", "ascending")])
    key, sequence, position, total = (ordered[name].to_numpy() for name in _OUT.names)
    first = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    lengths = np.diff(first, append=len(key))
    wrong = position != np.arange(len(key)) - np.repeat(first, lengths) + 1
    sums = np.cumsum(sequence)
    before = np.repeat(sums[first] - sequence[first], lengths)
    wrong |= total != sums - before
    # Records of one key from one source subtask keep their order.
    for producer in range(producers):
        own = np.flatnonzero(sequence % producers == producer)
        same_key = np.diff(key[own]) == 0
        wrong[own[1:]] |= same_key & (np.diff(sequence[own]) <= 0)
    found: Numbers = sequence[wrong]
    return found
