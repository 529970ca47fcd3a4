"""PySpark Python data sources, read without a session: one subtask plans partitions, many read
(`SplitSource`).

A partition travels as plain data. A source may give other rows when a partition is read again, as
generated ones and most services do, so a checkpoint cuts no partition, unless the class promises
`headrace_repeatable = True`.

A `SimpleDataSourceStreamReader` gives its rows together with the next offset, so it is read where
offsets are kept, by one subtask.

Its `commit` is called when a checkpoint that holds the offset is complete.

Not here: `commit` of a `DataSourceStreamReader`. Its partitions are read elsewhere, so those of an
offset may be unread when the checkpoint that holds the offset is complete.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ...contract.connectors import Planned, Split, SplitPlanner
from ...contract.errors import HeadraceError
from ...contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)
from .hosted import Hosted
from .plain import from_plain, to_plain

#: Where the planner of a batch read stands when all is planned.
_PLANNED = "planned"
_OFFSET = pa.schema([("offset", pa.string())])


@dataclass(frozen=True)
class PartitionSource:
    """A data source, by its partitions.

    Attributes:
        follow_ns: None: a batch read; else how often a stream without news is asked again.
    """

    hosted: Hosted
    follow_ns: int | None

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self.hosted.arrow

    @property
    def repeatable(self) -> bool:
        """What the class promises."""
        return getattr(self.hosted.made_of, "headrace_repeatable", False) is True

    def planner(self) -> SplitPlanner:
        """Make the planner."""
        if self.follow_ns is None:
            return BatchPlanner(self.hosted)
        return StreamPlanner(self.hosted, self.follow_ns)

    def reader(self) -> PartitionReader:
        """Make the reader of one subtask."""
        return PartitionReader(self.hosted, streams=self.follow_ns is not None)


class BatchPlanner:
    """Plans a batch read, once."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted

    def open(self, context: OperatorContext) -> None:
        """Nothing to prepare."""

    def plan(self, place: str) -> Planned:
        """Return all partitions. Raises: HeadraceError."""
        if place:
            return Planned((), place, SourceStatus.END)
        reader = self._hosted.ask("be read", self._hosted.make().reader, self._hosted.schema)
        # Spark reads a source without partitions as one whose only partition is None.
        partitions = self._hosted.ask("plan partitions", _partitions, reader)
        partitions = partitions or [InputPartition(None)]
        return Planned(_splits(self._hosted, "", partitions), _PLANNED, SourceStatus.END)

    def close(self) -> None:
        """Nothing is held."""


class StreamPlanner:
    """Plans a stream, from offset to offset; the place is an offset as JSON."""

    def __init__(self, hosted: Hosted, follow_ns: int) -> None:
        self._hosted = hosted
        self._follow_ns = follow_ns
        self._reader: Any = None

    def open(self, context: OperatorContext) -> None:
        """Make the stream reader. Raises: HeadraceError."""
        self._reader = _stream_reader(self._hosted, self._hosted.make().streamReader)

    def plan(self, place: str) -> Planned:
        """Ask for the newest offset, and plan up to it. Raises: HeadraceError."""
        ask, reader = self._hosted.ask, self._reader
        start = json.loads(place) if place else ask("tell its first offset", reader.initialOffset)
        place = json.dumps(start)
        end = ask("tell its newest offset", reader.latestOffset, *self._arguments(start))
        if end is None or json.dumps(end) == place:
            return Planned((), place, SourceStatus.IDLE, self._follow_ns)
        partitions = ask("plan partitions", reader.partitions, start, end)
        return Planned(_splits(self._hosted, place, partitions), json.dumps(end))

    def close(self) -> None:
        """Stop the stream reader."""
        if self._reader is not None:
            with suppress(Exception):
                self._reader.stop()

    def _arguments(self, start: object) -> list[object]:
        """Of `latestOffset`, which took none before PySpark 4.2."""
        known = {"start": lambda: start, "limit": self._reader.getDefaultReadLimit}
        wanted = inspect.signature(self._reader.latestOffset).parameters
        return [known[name]() for name in ("start", "limit")[: len(wanted)]]


class PartitionReader:
    """Reads partitions, in a subtask."""

    def __init__(self, hosted: Hosted, *, streams: bool) -> None:
        self._hosted = hosted
        self._streams = streams
        self._reader: Any = None

    def open(self, context: OperatorContext) -> None:
        """Make the reader. Raises: HeadraceError."""
        source = self._hosted.make()
        make = source.streamReader if self._streams else source.reader
        self._reader = _stream_reader(self._hosted, make)

    def read(self, split: Split, skip: int) -> Iterator[pa.RecordBatch]:
        """Read a partition. Raises: HeadraceError."""
        what = f"a partition of {self._hosted.what}"
        partition = from_plain(str(split.payload["partition"]), InputPartition, self._reader, what)
        rows = self._hosted.ask(f"read {split.payload}", self._reader.read, partition)
        batches = self._hosted.batches(self._hosted.telling(f"read {split.payload}", rows))
        left = skip
        for batch in batches:
            skipped = min(left, batch.num_rows)
            left -= skipped
            if skipped < batch.num_rows:
                yield batch.slice(skipped)
        if left:
            raise HeadraceError(
                f"{self._hosted.what} gave {left} rows fewer than before when {split.payload} was"
                " read again; its class must not say headrace_repeatable"
            )

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class SimpleSource:
    """A `Source` of a simple stream's rows."""

    hosted: Hosted
    follow_ns: int

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self.hosted.arrow

    def reader(self) -> SimpleReader:
        """Make the one reader."""
        return SimpleReader(self.hosted, self.follow_ns)


class SimpleReader:
    """Reads a simple stream: rows and the next offset come together."""

    def __init__(self, hosted: Hosted, follow_ns: int) -> None:
        self._hosted = hosted
        self._follow_ns = follow_ns
        self._reader: Any = None
        #: JSON; empty: nothing is read.
        self._offset = ""
        self._committed = ""
        #: The offset that the data source was told last.
        self._told = ""

    def open(self, context: OperatorContext) -> None:
        """Make the stream reader. Raises: HeadraceError."""
        assert context.parallelism == 1, "offsets are kept in one place"
        self._reader = _stream_reader(self._hosted, self._hosted.make().simpleStreamReader)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on at the offset of the checkpoint."""
        for state in states:
            (self._offset,) = state.table["offset"].to_pylist()
        self._committed = self._offset

    def poll(self, rows_max: int) -> Polled:
        """Read on from the offset. Raises: HeadraceError."""
        ask = self._hosted.ask
        if not self._offset:
            start = ask("tell its first offset", self._reader.initialOffset)
            self._offset = json.dumps(start)
        rows, end = ask("be read", self._reader.read, json.loads(self._offset))
        batches = list(self._hosted.batches(self._hosted.telling("be read", rows)))
        if json.dumps(end) == self._offset and batches:
            raise HeadraceError(
                f"{self._hosted.what} gave rows and no further offset than {end}: it would give"
                " them for ever"
            )
        self._offset = json.dumps(end)
        if batches:
            return Polled(batches, SourceStatus.MORE)
        return Polled((), SourceStatus.IDLE, self._follow_ns)

    def commit(self) -> None:
        """Publish the offset."""
        self._committed = self._offset

    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
        """Tell the data source up to where it may forget. Raises: HeadraceError."""
        for state in states:
            (offset,) = state.table()["offset"].to_pylist()
            if offset and offset != self._told:
                self._hosted.ask("commit an offset", self._reader.commit, json.loads(offset))
                self._told = offset

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the published offset."""
        table = pa.table({"offset": [self._committed]}, schema=_OFFSET)
        return (StateSnapshot("offset", StateKind.LIST, lambda: table),)

    def close(self) -> None:
        """Nothing is held."""


def _partitions(reader: Any) -> list[InputPartition]:
    """Return the partitions of a batch reader; early versions of the base class raise."""
    with suppress(NotImplementedError):
        return list(reader.partitions())
    return []


def _stream_reader(hosted: Hosted, make: Any) -> Any:
    return hosted.ask("be read", make, hosted.schema)


def _splits(hosted: Hosted, place: str, partitions: Sequence[object]) -> list[Split]:
    """Partitions as splits; names are unique by the offset that they follow."""
    what = f"a partition of {hosted.what}"
    return [
        Split(f"{place}#{number}", {"partition": to_plain(partition, what)})
        for number, partition in enumerate(partitions)
    ]
