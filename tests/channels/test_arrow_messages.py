"""Arrow messages: whether a body is compressed is told without inflating it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.arrow_messages import has_compressed_body

TABLE = pa.table(
    {
        "number": pa.array([1, 2, None], pa.int64()),
        "text": pa.array(["a" * 1000, "b" * 1000, None]),
        "code": pa.array(["x" * 1000, "y" * 1000, None]).dictionary_encode(),
    }
)


def messages(table: pa.Table, codec: str | None) -> dict[str, list[pa.ipc.Message]]:
    """The messages of the table's IPC stream, by type."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    found: dict[str, list[pa.ipc.Message]] = {}
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue())):
        found.setdefault(message.type, []).append(message)
    return found


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["record batch", "dictionary"])
def test_compressed_bodies_are_recognised(kind: str, codec: str) -> None:
    found = messages(TABLE, codec)[kind]
    assert found
    assert all(has_compressed_body(message) for message in found)


def test_plain_bodies_and_schemas_are_not_compressed() -> None:
    found = messages(TABLE, None)
    assert set(found) == {"schema", "dictionary", "record batch"}
    assert not any(has_compressed_body(message) for kind in found.values() for message in kind)
    assert not has_compressed_body(messages(TABLE, "zstd")["schema"][0])
