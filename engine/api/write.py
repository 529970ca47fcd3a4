"""Sinks of a stream: `stream.write.<format>(...)`.

Methods import their connectors, so that only a connector's users wait for its libraries.

A sink is a leaf: writing gives a `SinkHandle`, which a `Job` takes. The stream can be used further,
by other sinks too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..contract.connectors import Delivery, Sink
from ..plan.graph import Node, Role
from ..plan.validate import check_parallelism, require_name
from .call_site import call_site
from .flow import Flow


@dataclass(frozen=True, slots=True)
class SinkHandle:
    """A stream that ends in a sink, ready to be given to a `Job`.

    Attributes:
        node: the sink in the logical graph.
        sink: the connector.
    """

    node: Node
    sink: Sink

    @property
    def delivery(self) -> Delivery:
        """The sink's promise when checkpoints are on."""
        return self.sink.delivery

    @property
    def name(self) -> str:
        """The user's `name=`."""
        assert self.node.name is not None, "a sink is made with a name"
        return self.node.name


@dataclass(frozen=True, slots=True)
class Write:
    """The sinks of `stream`.

    Every method takes `name=`, which is required, and `parallelism=`, the number of writing
    subtasks (the job's by default), and raises `UserError` when a record of the stream has no place
    in the sink.
    """

    stream: Flow[Any]

    def parquet(
        self,
        path: str,
        *,
        name: str | None = None,
        compression: str = "snappy",
        storage_options: Mapping[str, Any] | None = None,
        parallelism: int | None = None,
    ) -> SinkHandle:
        """Write Parquet files into the folder `path`; a file appears when its checkpoint is
        complete.

        Args:
            path: local or any fsspec URL.
            compression: "snappy", "zstd", "gzip", "lz4", "brotli" or "none".
            storage_options: passed to fsspec.
        """
        from ..connectors.file_sink import FileSink

        sink = FileSink(path, "parquet", compression=compression, storage_options=storage_options)
        return self._to("write.parquet", sink, name, parallelism, proposed_name(path, "out"))

    def json(
        self,
        path: str,
        *,
        name: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        parallelism: int | None = None,
    ) -> SinkHandle:
        """Write files of one JSON object per line into the folder `path`, as `parquet` does."""
        from ..connectors.file_sink import FileSink

        sink = FileSink(path, "json", storage_options=storage_options)
        return self._to("write.json", sink, name, parallelism, proposed_name(path, "out"))

    def collect(self, *, name: str | None = None, parallelism: int | None = None) -> SinkHandle:
        """Gather all records in the driver, as `JobResult.collected[name]`.

        For results that fit in memory.
        """
        from ..connectors.memory import CollectSink

        return self._to("write.collect", CollectSink(), name, parallelism, "collected")

    def blackhole(self, *, name: str | None = None, parallelism: int | None = None) -> SinkHandle:
        """Drop all records, for benchmarks."""
        from ..connectors.memory import BlackholeSink

        return self._to("write.blackhole", BlackholeSink(), name, parallelism, "dropped")

    def to(
        self, sink: Sink, *, name: str | None = None, parallelism: int | None = None
    ) -> SinkHandle:
        """Write to any `Sink`."""
        return self._to("write.to", sink, name, parallelism, "out")

    def _to(
        self, kind: str, sink: Sink, name: str | None, parallelism: int | None, proposal: str
    ) -> SinkHandle:
        name = require_name(
            name, kind=kind, proposal=proposal, why="by which its transactions are found again"
        )
        if parallelism is not None:
            check_parallelism(parallelism, where=f"{kind}: parallelism")
        sink.check(self.stream.schema)
        node = Node(
            kind=kind,
            role=Role.SINK,
            name=name,
            inputs=self.stream.inputs,
            schema=self.stream.schema,
            writer=sink.writer,
            committer=sink.committer,
            parallelism=parallelism,
            stateful=True,
            built_at=call_site(),
        )
        return SinkHandle(node, sink)


def proposed_name(path: str, otherwise: str) -> str:
    """Propose a name for a reader or writer of `path`: the last part without a pattern, without an
    extension.
    """
    for part in reversed(re.split(r"[/\\]", path)):
        stem = part.split(".")[0]
        if stem and not re.search(r"[*?\[\]:]", part):
            return stem
    return otherwise
