"""Arrow IPC messages, looked at before Arrow acts on them.

Arrow inflates a compressed body as soon as it reads the batch, to the length that the body claims:
three kilobytes become a hundred megabytes. Headrace writes no compressed bodies, so readers from a
peer or from storage refuse them first. Arrow's libraries do not show the flag; it is read from the
message's flatbuffer, which Arrow has verified by then.

Source: Arrow columnar format 1.5, `format/Message.fbs` and the FlatBuffers layout of tables.
"""

from __future__ import annotations

import struct

import pyarrow as pa

# Field numbers in Message.fbs: format, never change.
_HEADER_OF_MESSAGE = 2
_DATA_OF_DICTIONARY = 1
_COMPRESSION_OF_BATCH = 3

# Bound once: this is asked of every buffer that comes in.
_UINT16 = struct.Struct("<H").unpack_from
_UINT32 = struct.Struct("<I").unpack_from
_INT32 = struct.Struct("<i").unpack_from


def has_compressed_body(message: pa.ipc.Message) -> bool:
    """Tell whether the body of a message is compressed, as record batches and dictionaries may be.

    Raises: struct.error where the metadata is cut short, which Arrow's own check has ruled out.
    """
    kind = message.type
    if kind not in ("record batch", "dictionary"):
        return False
    metadata = message.metadata.to_pybytes()
    (root,) = _UINT32(metadata, 0)
    batch = _field(metadata, root, _HEADER_OF_MESSAGE)
    if batch is not None and kind == "dictionary":
        batch = _field(metadata, batch, _DATA_OF_DICTIONARY)
    return batch is not None and _field(metadata, batch, _COMPRESSION_OF_BATCH) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Follow the offset in field `number` of the flatbuffer table at `table`; None: absent."""
    (to_vtable,) = _INT32(metadata, table)
    vtable = table - to_vtable
    entry = 4 + 2 * number
    if entry + 2 > _UINT16(metadata, vtable)[0]:
        return None
    (position,) = _UINT16(metadata, vtable + entry)
    if position == 0:
        return None
    (target,) = _UINT32(metadata, table + position)
    return int(table + position + target)
