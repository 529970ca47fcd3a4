"""Protocols of a source and a sink: the seam between streams and connectors.

A `Source` or `Sink` is a value: built in the driver, pickled with the program, and asked in every
subtask for a fresh reader or writer. So constructing one, and calling `reader`, `writer` or
`committer`, opens and connects nothing; `open` of the reader or writer does. Only `Source.schema`
may look at data.

Users write two such classes as a connector of their own, and pass them to `headrace.from_source`
and `Stream.write.to`.
"""

from __future__ import annotations

from typing import Literal, Protocol

import pyarrow as pa

from .operators import SinkCommitter, SinkWriter, SourceReader

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
