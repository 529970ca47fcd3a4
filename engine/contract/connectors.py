"""Protocols of a source and a sink: the seam between streams and connectors.

A `Source` or `Sink` is a value: built in the driver, pickled with the program, and asked in every
subtask for a fresh reader or writer. So constructing one, and calling `reader`, `writer` or
`committer`, opens and connects nothing; `open` of the reader or writer does. Only `Source.schema`
may look at data.

Users write two such classes as a connector of their own, and pass them to `headrace.from_source`
and `Stream.write.to`.

A `SplitSource` is a source of which one place plans pieces, and many places read them
(`headrace.read.splits`): the planner keeps a place, the pieces not read to the end are state, and
both are the engine's to store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

from .operators import (
    OperatorContext,
    RestoredState,
    SinkCommitter,
    SinkWriter,
    SourceReader,
    SourceStatus,
)

#: What a sink promises about each record after failures; printed when the job starts.
Delivery = Literal["exactly-once", "at-least-once"]


class Source(Protocol):
    """Where records come from."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch that the readers return. May read a file's header.

        Raises: UserError, when nothing is there or the data has no usable schema.
        """
        ...

    def reader(self) -> SourceReader:
        """Make the reader of one subtask; the readers share out the splits among themselves by
        subtask index.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run of a job, for a source that the driver prepares.

    Attributes:
        operator: the source's `name=`.
        folder: URL of a folder of this source alone, beside the job's checkpoints; empty: the job
            keeps none.
        restored: the run goes on from a checkpoint that holds the source's state.
        fresh: the user wants the job to begin anew.
    """

    job: str
    operator: str
    folder: str
    restored: bool
    fresh: bool


def _nothing() -> None:
    """There is nothing to begin."""


def _nothing_to_end(finished: bool) -> None:
    """There is nothing to end."""


@dataclass(frozen=True, slots=True)
class PreparedSource:
    """A source, ready for one run.

    Attributes:
        reader: makes the reader of one subtask, in place of `Source.reader`.
        begin: called in the driver before the workers read, when no other run of the job in this
            process is left.
        end: called once in the driver after the run, with whether the job has finished for good.
        kept: called in the driver every few seconds of a run with checkpoints, with the source's
            states in every complete checkpoint and savepoint of the job's folder: all that a later
            start without a path may go back to.
    """

    reader: Callable[[], SourceReader]
    begin: Callable[[], None] = _nothing
    end: Callable[[bool], None] = _nothing_to_end
    kept: Callable[[Sequence[Sequence[RestoredState]]], None] | None = None


@runtime_checkable
class PreparesRun(Source, Protocol):
    """A source with work to do in the driver as a run starts, such as staging or planning.

    Pickled like any other; `prepare` is called in the driver alone.
    """

    def prepare(self, run: SourceRun) -> PreparedSource:
        """Make the records of this run ready. A reader that is restored gets all it needs by its
        state.

        Raises: HeadraceError.
        """
        ...


class Sink(Protocol):
    """Where records go."""

    @property
    def delivery(self) -> Delivery:
        """The sink's promise when checkpoints are on."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse records that cannot be written. Called when the pipeline is built.

        Raises: UserError, when records of `schema` have no place in this sink.
        """
        ...

    def writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        ...

    def committer(self, job: str, operator: str) -> SinkCommitter | None:
        """Make the committer of the writers' transactions, or None when writing is all there is to
        do.

        Args:
            job: name of the job, and `operator` of the sink in it: the owner of these transactions.
        """
        ...


@runtime_checkable
class ReadBySpark(Sink, Protocol):
    """A sink whose visible output Spark can read."""

    def spark_format(self) -> tuple[str, str]:
        """Return the format and the place, as `spark.read.format(...).load(...)` takes them."""
        ...


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of a source's data, as planned; travels as plain data.

    Attributes:
        name: for messages; unique in the source.
        payload: facts by which a reader finds the data, strings and integers only.
    """

    name: str
    payload: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """Answer of a planner.

    Attributes:
        place: where the planner goes on: any text, given to the next `plan`.
        status: END: nothing is ever to be planned again; IDLE: ask again after `wait_ns`.
    """

    splits: Sequence[Split]
    place: str
    status: SourceStatus = SourceStatus.MORE
    wait_ns: int = 0


class SplitPlanner(Protocol):
    """Plans the splits of a source, and finds new ones, in one place of the job.

    An instance keeps no state of its own: a restarted planner goes on at the stored place.
    """

    def open(self, context: OperatorContext) -> None:
        """Called once, first."""
        ...

    def plan(self, place: str) -> Planned:
        """Return the splits that follow the place, some thousands at most; "" is the beginning.

        The place moves with the splits, or not at all: none is planned twice, and none forgotten.
        """
        ...

    def close(self) -> None:
        """Release what `open` took. Called once, also after failures; must not raise."""
        ...


class SplitReader(Protocol):
    """Reads splits, one after the other, in a subtask."""

    def open(self, context: OperatorContext) -> None:
        """Called once, first."""
        ...

    def read(self, split: Split, skip: int) -> Iterable[pa.RecordBatch]:
        """Return the records of the split behind the first `skip` rows, in batches of any size.

        A split that is not repeatable is always read from its beginning.
        """
        ...

    def close(self) -> None:
        """Release what `open` took. Called once, also after failures; must not raise."""
        ...


class SplitSource(Protocol):
    """Where records come from, in splits; a value like a `Source`."""

    @property
    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        ...

    @property
    def repeatable(self) -> bool:
        """A split that is read again gives the same rows in the same order.

        True: splits are read bit by bit, and a restart goes on in the midst of a split. False: a
        split is read whole in one call, in memory, and is read again or not at all after a restart.
        """
        ...

    def planner(self) -> SplitPlanner:
        """Make the planner."""
        ...

    def reader(self) -> SplitReader:
        """Make the reader of one subtask."""
        ...
