"""What a source and a sink are to the rest of headrace: the seam between streams and connectors.

A `Source` or `Sink` is a value: it is built in the driver, pickled with the program, and asked in every
subtask for a fresh reader or writer. So constructing one, and calling `reader`, `writer` or `committer`, opens nothing
and connects to nothing; that is what `open` of the reader or writer is for. Only `Source.schema` may look at data.

Users bring their own connector by writing two such classes and passing them to `headrace.from_source` and
`Stream.write.to`.
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

        Raises: UserError, when nothing is there or what is there has no usable schema.
        """
        ...

    def reader(self) -> SourceReader:
        """Make the reader of one subtask; the readers share out the splits among themselves by subtask index."""
        ...


class Sink(Protocol):
    """Where records go."""

    @property
    def delivery(self) -> Delivery:
        """What this sink promises when checkpoints are on."""
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
        """Make what commits the writers' transactions, or None when writing is all there is to do.

        Args:
            job: name of the job, and `operator` of the sink in it: whose transactions these are.
        """
        ...
