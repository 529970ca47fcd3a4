"""`iterate` as a value: what the body is given, and what comes back."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream

ROWS = pa.RecordBatch.from_pylist([], schema=pa.schema([("at", pa.timestamp("us"))]))


def test_the_body_is_called_once_with_the_stream_and_its_event_time() -> None:
    given: list[Stream] = []

    def body(loop: Stream) -> tuple[Stream, Stream]:
        given.append(loop)
        return loop.filter(pc.field("at").is_null()), loop.filter(pc.field("at").is_valid())

    timed = batches([ROWS], name="timed").with_watermark("at", "1s")
    out = timed.iterate(body, name="rounds", parallelism=3)
    (loop,) = given
    assert (loop.schema, loop.event_time, out.event_time) == (timed.schema, "at", "at")
    head = loop.inputs[0].node
    assert (head.name, head.parallelism, head.inputs) == ("rounds", 3, timed.inputs)
    assert [edge.node.kind for edge in head.again] == ["filter"]
    assert out.inputs[0].node not in [edge.node for edge in head.again]
