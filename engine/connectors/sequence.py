"""A source that makes numbered records: for tests, demonstrations and benchmarks.

Every record has a `sequence` of its own and all other columns are functions of it, so a run's
output can be checked record by record, whatever failures and rescalings lay between. Subtask i of p
makes the numbers i, i + p, i + 2p...: so subtasks of equal pace also move through event time
together, which contiguous halves would not.

State is a list of strides `(next, end, step)`. At the same parallelism each subtask goes on with
its own strides, so that records of one stride keep their order through failures. At another
parallelism, numbers from the highest `next` upwards, which no subtask has made, are shared out
afresh; the numbers that slower subtasks still owe below it are dealt out whole. So the list never
holds more than the unfinished strides.

With a rate, records fall due on a fixed schedule from the first poll of the attempt; a source that
backpressure held up catches up, so the load offered does not depend on the job's speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..contract.errors import UserError
from ..contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)

#: Makes one extra column from the sequence numbers of a batch; must depend on nothing else.
Column = Callable[[npt.NDArray[np.int64]], npt.ArrayLike]

#: Last number of an endless source: leaves room for `next + step` in an int64.
_ENDLESS = 2**62
#: A paced source makes at least this much of its schedule at once, or batches would hold a record
#: each.
_PACE_NS = 1_000_000
_SECOND_NS = 1_000_000_000
_STRIDES = pa.schema(
    [("next", pa.int64()), ("end", pa.int64()), ("step", pa.int64()), ("main", pa.bool_())]
)


@dataclass(frozen=True, slots=True, order=True)
class Stride:
    """Numbers `next`, `next + step`, ... below `end`, not made yet.

    Attributes:
        main: one of the p equal strides that reach to the end of the source, and not a remainder of
            an earlier parallelism.
    """

    next: int
    end: int
    step: int
    main: bool

    def after(self, count: int) -> Stride:
        """The same stride with its first `count` numbers taken."""
        return Stride(self.next + count * self.step, self.end, self.step, self.main)

    @property
    def count(self) -> int:
        """How many numbers are left."""
        return max(0, -(-(self.end - self.next) // self.step))

    @property
    def name(self) -> str:
        """Name of the stride's watermark."""
        numbers = f"{self.next % self.step}/{self.step}"
        return numbers if self.main else f"{numbers}<{self.end}"


def share(strides: Sequence[Stride], *, end: int, parallelism: int, index: int) -> list[Stride]:
    """Return the strides of subtask `index` of `parallelism`, given the strides that all old
    subtasks saved.

    Without saved strides the source starts from zero. The answers for all subtasks together are
    exactly the numbers below `end` that the saved strides had not made.
    """
    mains = sorted((s for s in strides if s.main), key=lambda stride: stride.next % stride.step)
    if [stride.step for stride in mains] == [parallelism] * parallelism:
        # Dealt out afresh, a slow stride's next numbers would run beside later ones.
        remainders = sorted(stride for stride in strides if not stride.main and stride.count)
        own = mains[index]
        return [*remainders[index::parallelism], Stride(own.next, end, parallelism, True)]
    frontier = max((stride.next for stride in mains), default=0)
    owed = [
        Stride(stride.next, min(frontier, end), stride.step, False) if stride.main else stride
        for stride in strides
    ]
    unfinished = sorted(stride for stride in owed if stride.count)
    return [*unfinished[index::parallelism], Stride(frontier + index, end, parallelism, True)]


@dataclass(frozen=True, kw_only=True)
class SequenceSource:
    """Numbered records `sequence`, `timestamp`, `key` and, when asked for, `payload` and further
    columns.

    Attributes:
        rows: how many in all; None never ends.
        rate_per_s: records per second of the whole job; None makes them as fast as they are taken.
        key_count: `key` is spread evenly over `range(key_count)`, each run of `key_count` numbers
            holding every key once, in varying order; None gives each record its own number as its
            key.
        payload_bytes: size of the binary column `payload`, equal in all records; 0 leaves the
            column out.
        timestamp_start_ns: `timestamp` of record 0.
        timestamp_step_ns: distance of neighbouring records; default the rate's distance, else a
            microsecond.
        columns: name -> function of the batch's sequence numbers, for further columns.
        batch_rows: most rows of a batch.
        clock: monotonic nanoseconds, for the rate alone.
    """

    rows: int | None
    rate_per_s: float | None = None
    key_count: int | None = 1000
    payload_bytes: int = 0
    timestamp_start_ns: int = 0
    timestamp_step_ns: int | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    batch_rows: int = 8192
    clock: Callable[[], int] = time.monotonic_ns

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 0:
            raise UserError(
                f"rows={self.rows}: a sequence has 0 or more rows, or None to never end"
            )
        if self.rate_per_s is not None and self.rate_per_s <= 0:
            raise UserError(
                f"rate_per_s={self.rate_per_s}: a rate is above 0, or None for no limit"
            )
        if self.key_count is not None and not 0 < self.key_count < 2**31:
            raise UserError(
                f"key_count={self.key_count}: must be between 1 and 2147483647, or None"
            )
        if self.payload_bytes < 0 or self.batch_rows < 1:
            raise UserError(
                f"payload_bytes={self.payload_bytes}, batch_rows={self.batch_rows}: "
                "payload_bytes must be 0 or more and batch_rows 1 or more"
            )
        taken = {"sequence", "timestamp", "key", "payload"} & set(self.columns)
        if taken:
            raise UserError(
                f"column {min(taken)!r} is made by the sequence itself: choose another name"
            )

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch; the functions of `columns` are tried on two numbers for their
        types.
        """
        fields = [pa.field(name, pa.int64()) for name in ("sequence", "timestamp", "key")]
        if self.payload_bytes:
            fields.append(pa.field("payload", pa.binary()))
        for name, function in self.columns.items():
            sample = pa.array(function(np.arange(2, dtype=np.int64)))
            if len(sample) != 2:
                raise UserError(
                    f"the function of column {name!r} gave {len(sample)} values for 2 records: "
                    "return one value for each number it is given"
                )
            fields.append(pa.field(name, sample.type))
        return pa.schema(fields)

    def reader(self) -> SequenceReader:
        """Make the reader of one subtask."""
        return SequenceReader(self)


class SequenceReader:
    """Makes the numbers of one subtask. Its state is its strides."""

    def __init__(self, source: SequenceSource) -> None:
        self._source = source
        self._records = _Records(source)
        self._end = _ENDLESS if source.rows is None else source.rows
        self._index = 0
        self._parallelism = 1
        #: What `poll` goes by; it belongs to the subtask's thread.
        self._strides: tuple[Stride, ...] = ()
        self._committed: tuple[Stride, ...] = ()
        #: See `open_splits`, and of how many strides that was.
        self._open: tuple[int, frozenset[str]] = (0, frozenset())
        self._started_ns: int | None = None
        self._made = 0

    def open(self, context: OperatorContext) -> None:
        """Take this subtask's share of a fresh source."""
        self._index, self._parallelism = context.index, context.parallelism
        self._deal([])

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take this subtask's share of the saved strides."""
        saved = [
            Stride(row["next"], row["end"], row["step"], row["main"])
            for state in states
            for row in state.table.to_pylist()
        ]
        self._deal(saved)

    def poll(self, rows_max: int) -> Polled:
        """Make the next numbers that are due."""
        while self._strides and not self._strides[0].count:
            # A finished main stride stays in the state: it tells how far the source has come.
            if self._strides[0].main:
                return Polled((), SourceStatus.END)
            self._strides = self._strides[1:]
        due, wait_ns = self._due()
        count = min(rows_max, self._source.batch_rows, self._strides[0].count, due)
        if count <= 0:
            return Polled((), SourceStatus.IDLE, wait_ns)
        name = self._strides[0].name
        batch = self._records.make(self._strides[0], count)
        self._strides = (self._strides[0].after(count), *self._strides[1:])
        self._made += count
        due, wait_ns = self._due()
        # Said at once: another poll would cost as much as this one.
        status = SourceStatus.MORE if due else SourceStatus.IDLE
        return Polled((batch,), status, wait_ns, split=name)

    def open_splits(self) -> frozenset[str]:
        """The remainders of earlier parallelisms; then the main stride, whose numbers come after
        them.
        """
        if self._open[0] != len(self._strides):
            names = [stride.name for stride in self._strides]
            self._open = len(names), frozenset(names[:-1] or names)
        return self._open[1]

    def commit(self) -> None:
        """Publish the strides as the last poll left them."""
        self._committed = self._strides

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the committed strides."""
        strides = self._committed
        return (StateSnapshot("strides", StateKind.UNION, lambda: _strides_table(strides)),)

    def close(self) -> None:
        """Nothing is held."""

    def _deal(self, saved: Sequence[Stride]) -> None:
        self._strides = tuple(
            share(saved, end=self._end, parallelism=self._parallelism, index=self._index)
        )
        self._committed = self._strides
        self._open = (0, frozenset())

    def _due(self) -> tuple[int, int]:
        """How many records may be made now, and how long to wait if there are none."""
        rate = self._source.rate_per_s
        if rate is None:
            return _ENDLESS, 0
        now_ns = self._source.clock()
        if self._started_ns is None:
            self._started_ns = now_ns
        each_ns = _SECOND_NS * self._parallelism / rate
        due = int((now_ns - self._started_ns) / each_ns) + 1 - self._made
        together = min(max(1, int(_PACE_NS / each_ns)), self._strides[0].count)
        if due >= together:
            return due, 0
        ready_ns = self._started_ns + (self._made + together - 1) * each_ns
        return 0, max(1, int(ready_ns - now_ns) + 1)


class _Records:
    """Makes the batches of one reader; every column is a function of the numbers."""

    def __init__(self, source: SequenceSource) -> None:
        self._schema = source.schema
        self._columns = source.columns
        self._start_ns = source.timestamp_start_ns
        self._step_ns = _step_ns(source)
        self._key_count = source.key_count
        self._payload = _payload(source.payload_bytes, source.batch_rows)

    def make(self, stride: Stride, count: int) -> pa.RecordBatch:
        first, step = stride.next, stride.step
        sequence = np.arange(first, first + count * step, step, dtype=np.int64)
        timestamp = sequence * self._step_ns
        timestamp += self._start_ns
        arrays = [_int64(sequence), _int64(timestamp), _int64(_keys(sequence, self._key_count))]
        if self._payload is not None:
            arrays.append(self._payload.slice(0, count))
        for name, function in self._columns.items():
            arrays.append(pa.array(function(sequence), type=self._schema.field(name).type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _step_ns(source: SequenceSource) -> int:
    if source.timestamp_step_ns is not None:
        return source.timestamp_step_ns
    rate = source.rate_per_s
    return 1000 if rate is None else max(1, int(_SECOND_NS / rate))


def _int64(values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _keys(sequence: npt.NDArray[np.int64], key_count: int | None) -> npt.NDArray[np.int64]:
    """A permutation of the keys for each run of `key_count` numbers, shifted from run to run."""
    if key_count is None:
        return sequence
    # Unsigned, because NumPy divides those three times faster; quotients spare the slow remainder.
    count = np.uint64(key_count)
    numbers = sequence.view(np.uint64)
    runs = numbers // count
    within = numbers - runs * count
    shift = (runs * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    mixed = within * np.uint64(_multiplier(key_count)) + shift
    mixed -= (mixed // count) * count
    return mixed.view(np.int64)


def _multiplier(key_count: int) -> int:
    """Return a number below 2**31 without a common divisor with `key_count`: multiplying by it
    permutes the keys.
    """
    multiplier = 1_640_531_527
    while np.gcd(multiplier, key_count) != 1:
        multiplier += 2
    return multiplier


def _payload(size_bytes: int, rows: int) -> pa.Array | None:
    """Return `rows` equal binary values, for batches to slice.

    The bytes are random, so that one value does not compress.
    """
    if not size_bytes:
        return None
    value = np.random.default_rng(seed=size_bytes).bytes(size_bytes)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(size_bytes)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(value * rows)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _strides_table(strides: Sequence[Stride]) -> pa.Table:
    columns = {
        name: [getattr(stride, name) for stride in strides]
        for name in ("next", "end", "step", "main")
    }
    return pa.table(columns, schema=_STRIDES)
