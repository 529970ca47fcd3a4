"""Wire format: frames between two workers, or a worker and the coordinator, as bytes and back.

One connection carries the frames of many channels, in each direction under its own key. A frame is
a header of fixed size and a body; numbers are little endian; everything below is format and never
changes without a new magic:

    offset  width  field
         0      4  magic and version, "HRW1"
         4      4  kind: 1 buffer, 2 event, 3 credit, 4 control
         8      4  body length in bytes
        12     12  channel: edge, producer, consumer (zero in a control frame)
        24      8  position in the channel (buffer: of its first record; event: where it sits)
        32      8  size: bytes charged to credit (buffer), new limit in bytes (credit)
        40      4  rows (buffer)
        44      4  fingerprint of the edge's schema (buffer)
        48      8  sequence of the frame in this direction, from 0
        56      8  digest of the body: xxh3-64 (buffer), blake2b keyed (all others)
        64     16  MAC of the bytes 0..64: blake2b keyed
        80      .  body: buffer: one Arrow IPC record batch message without schema, never compressed
                         event:  kind (1 barrier, 2 end of input, 3 watermark), mode, checkpoint
                                 (8), created_ns (8); of a watermark: 1 if idle, else 0; 0; event
                                 time in nanoseconds since 1970, signed
                         credit: empty
                         control: opaque

The header is believed only after its MAC, and the length only up to a limit, so no peer makes us
allocate at will. The sequence refuses replayed, dropped and swapped frames. The digest of a data
body finds damage, not malice: an attacker on the path could forge a data body, and a network with
such attackers needs TLS below. Commands and events have no such gap: their bodies are short enough
for a keyed digest.

Decoder and encoder do no I/O: the caller moves bytes. The caller reads a body straight to its final
place; the batches of a buffer frame are views of that memory.

Source: the record format of Pebble for "drawn where it is coded"; Arrow IPC for the body.
Deviation: the schema stays at home.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, assert_never

import pyarrow as pa
import xxhash

from .arrow_messages import has_compressed_body
from .buffer import Buffer, ChannelId
from .events import Barrier, ChannelEvent, CheckpointMode, EndOfInput, Watermark
from .schemas import UnsupportedSchema, WireSchema, WireSchemas

#: Longest body that is sent or received, unless the caller says otherwise.
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024

#: Size of the header: format, never change.
HEADER_BYTES: Final = 80

# Format, never change.
_MAGIC: Final = b"HRW1"
_FIELDS: Final = struct.Struct("<4sIIIIIQQIIQQ")
_MAC_BYTES: Final = 16
_BUFFER, _EVENT, _CREDIT, _CONTROL = 1, 2, 3, 4
_EVENT_FIELDS: Final = struct.Struct("<BBQq")
_BARRIER, _END_OF_INPUT, _WATERMARK = 1, 2, 3
_MODES: Final = {
    CheckpointMode.ALIGNED: 1,
    CheckpointMode.UNALIGNED: 2,
    CheckpointMode.AT_LEAST_ONCE: 3,
}
_MODE_OF_CODE: Final = {code: mode for mode, code in _MODES.items()}
_NO_CHANNEL: Final = ChannelId(0, 0, 0)

assert _FIELDS.size + _MAC_BYTES == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class BufferFrame:
    """Records of a channel, on arrival as one part."""

    channel: ChannelId
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class EventFrame:
    """An event that sits at `position` of a channel."""

    channel: ChannelId
    position: int
    event: ChannelEvent


@dataclass(frozen=True, slots=True)
class CreditFrame:
    """From consumer to producer: the channel may have carried `limit_bytes` since its start."""

    channel: ChannelId
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A message of the coordination protocol; opaque here."""

    body: bytes


Frame = BufferFrame | EventFrame | CreditFrame | ControlFrame


class WireError(Exception):
    """A peer with our key and our plan would not send these bytes, or a frame is too large to send.

    Attributes:
        what: the part that is wrong.
        channel: the frame's channel; None: unknown.
        offset: where the frame begins, in bytes since the start of this direction.
        expected: instead of the bytes found, in words.
        found: in words.
    """

    def __init__(
        self, what: str, channel: ChannelId | None, offset: int, expected: object, found: object
    ) -> None:
        # All of them go to `args`, from which pickle rebuilds the error in another process.
        super().__init__(what, channel, offset, str(expected), str(found))
        self.what = what
        self.channel = channel
        self.offset = offset
        self.expected = str(expected)
        self.found = str(found)

    def __str__(self) -> str:
        where = "" if self.channel is None else f" of channel {self.channel}"
        return (
            f"{self.what}{where} in the frame at byte {self.offset}: "
            f"expected {self.expected}, found {self.found}"
        )


class FrameHeader(NamedTuple):
    """A header of good MAC, sequence and length. `body_bytes` bytes of body follow."""

    kind: int
    body_bytes: int
    channel: ChannelId
    position: int
    size: int
    rows: int
    fingerprint: int
    digest: int
    offset: int


class _Digests:
    """Keyed digests of one direction. A copied hash saves most of the cost, the key's set-up."""

    __slots__ = ("_body", "_header")

    def __init__(self, key: bytes) -> None:
        self._header = blake2b(key=key, digest_size=_MAC_BYTES, person=b"headrace header")
        self._body = blake2b(key=key, digest_size=8, person=b"headrace body")

    def header_mac(self, fields: bytes | memoryview) -> bytes:
        digest = self._header.copy()
        digest.update(fields)
        return digest.digest()

    def body_digest(self, kind: int, body: bytes | memoryview) -> int:
        if kind == _BUFFER:
            return xxhash.xxh3_64_intdigest(body)
        digest = self._body.copy()
        digest.update(body)
        return int.from_bytes(digest.digest(), "little")


class FrameEncoder:
    """Turns frames of one direction of a connection into bytes, with a number each."""

    def __init__(self, key: bytes, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """Start at frame 0 with `key` (at most 64 bytes), for one direction of one connection."""
        self._digests = _Digests(key)
        self._schemas = WireSchemas()
        self._frame_bytes_max = frame_bytes_max
        self._sequence = 0
        self._offset = 0

    def encode(self, frame: Frame) -> list[bytes | memoryview]:
        """Return the bytes of `frame` in pieces, to be sent in order before the next frame's.

        A buffer with a body beyond the limit leaves as several frames; their sizes add up.

        Raises: WireError if one record alone, or an event or control body, is longer than the
            limit, or if a batch cannot travel (`schemas.UnsupportedSchema`). The connection must
            end then: bytes may be missing.
        """
        pieces: list[bytes | memoryview] = []
        match frame:
            case BufferFrame(channel, buffer):
                self._encode_buffer(channel, buffer, pieces)
            case EventFrame(channel, position, event):
                self._append(pieces, _EVENT, channel, _pack_event(event), position=position)
            case CreditFrame(channel, limit_bytes):
                self._append(pieces, _CREDIT, channel, b"", size=limit_bytes)
            case ControlFrame(body):
                self._append(pieces, _CONTROL, _NO_CHANNEL, body)
            case _:
                assert_never(frame)
        return pieces

    def _encode_buffer(
        self, channel: ChannelId, buffer: Buffer, pieces: list[bytes | memoryview]
    ) -> None:
        try:
            schema = self._schemas.of(channel.edge, buffer.parts[0].schema)
        except UnsupportedSchema as error:
            raise WireError("schema", channel, self._offset, "types that travel", error) from error
        if schema.recoded and len(buffer.parts) > 1:
            # Not merged: the dictionaries of all parts together might outgrow the index type.
            self._encode_halves(channel, buffer, buffer.parts[0].num_rows, pieces)
            return
        batch = buffer.parts[0] if len(buffer.parts) == 1 else pa.concat_batches(buffer.parts)
        assert batch.num_rows == buffer.rows, f"{channel}: {batch.num_rows} != {buffer.rows}"
        body = (batch.cast(schema.wire) if schema.recoded else batch).serialize()
        if body.size > self._frame_bytes_max and buffer.rows > 1:
            self._encode_halves(channel, buffer, buffer.rows // 2, pieces)
            return
        self._append(
            pieces,
            _BUFFER,
            channel,
            memoryview(body),
            position=buffer.first,
            size=buffer.size_bytes,
            rows=buffer.rows,
            fingerprint=schema.fingerprint,
        )

    def _encode_halves(
        self, channel: ChannelId, buffer: Buffer, rows: int, pieces: list[bytes | memoryview]
    ) -> None:
        for half in buffer.split(rows):
            self._encode_buffer(channel, half, pieces)

    def _append(
        self,
        pieces: list[bytes | memoryview],
        kind: int,
        channel: ChannelId,
        body: bytes | memoryview,
        *,
        position: int = 0,
        size: int = 0,
        rows: int = 0,
        fingerprint: int = 0,
    ) -> None:
        if len(body) > self._frame_bytes_max:
            limit = f"at most {self._frame_bytes_max} bytes"
            raise WireError("body length", channel, self._offset, limit, len(body))
        fields = _FIELDS.pack(
            _MAGIC,
            kind,
            len(body),
            *channel,
            position,
            size,
            rows,
            fingerprint,
            self._sequence,
            self._digests.body_digest(kind, body),
        )
        pieces.append(fields + self._digests.header_mac(fields))
        if body:
            pieces.append(body)
        self._sequence += 1
        self._offset += HEADER_BYTES + len(body)


class FrameDecoder:
    """Turns the bytes of one direction back into frames; believes no byte.

    The caller reads `HEADER_BYTES` bytes, calls `header`, reads `body_bytes` bytes into memory
    that will not be written again, and calls `frame`. After a `WireError` the stream is lost and
    the connection must be closed.
    """

    def __init__(
        self,
        key: bytes,
        schemas: Callable[[int], pa.Schema],
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """Start at frame 0. `schemas` maps an edge index to a schema, or raises LookupError."""
        self._digests = _Digests(key)
        self._schema_of_edge = schemas
        self._schemas = WireSchemas()
        self._frame_bytes_max = frame_bytes_max
        self._sequence = 0
        self._offset = 0

    def header(self, data: memoryview) -> FrameHeader:
        """Check the `HEADER_BYTES` bytes of `data`, which the caller may overwrite afterwards.

        Raises: WireError. No memory is allocated on the word of the peer.
        """
        assert len(data) == HEADER_BYTES, f"a header has {HEADER_BYTES} bytes, not {len(data)}"
        fields = data[: _FIELDS.size]
        magic = bytes(fields[:4])
        if magic != _MAGIC:
            raise self._bad("magic", None, _MAGIC, magic)
        if not hmac.compare_digest(data[_FIELDS.size :], self._digests.header_mac(fields)):
            raise self._bad("MAC", None, "one made with our key", "another")
        (
            _,
            kind,
            body_bytes,
            edge,
            producer,
            consumer,
            position,
            size,
            rows,
            fingerprint,
            sequence,
            digest,
        ) = _FIELDS.unpack(fields)
        channel = ChannelId(edge, producer, consumer)
        if sequence != self._sequence:
            raise self._bad("sequence", channel, self._sequence, sequence)
        if body_bytes > self._frame_bytes_max:
            raise self._bad(
                "body length", channel, f"at most {self._frame_bytes_max} bytes", body_bytes
            )
        header = FrameHeader(
            kind, body_bytes, channel, position, size, rows, fingerprint, digest, self._offset
        )
        self._check_fields(header)
        self._sequence += 1
        self._offset += HEADER_BYTES + body_bytes
        return header

    def frame(self, header: FrameHeader, body: pa.Buffer) -> Frame:
        """Decode the body of `header`. A buffer frame keeps `body` alive and unchanged from now on.

        Raises: WireError.
        """
        assert body.size == header.body_bytes, f"{body.size} bytes, not {header.body_bytes}"
        view = memoryview(body)
        digest = self._digests.body_digest(header.kind, view)
        if digest != header.digest:
            raise _bad_body(header, "body digest", f"{header.digest:016x}", f"{digest:016x}")
        match header.kind:
            case 1:
                return self._decode_buffer(header, body)
            case 2:
                return EventFrame(header.channel, header.position, _unpack_event(header, view))
            case 3:
                return CreditFrame(header.channel, header.size)
            case _:
                return ControlFrame(bytes(view))

    def _check_fields(self, header: FrameHeader) -> None:
        """Hold the header against the law of its kind: unused fields are zero."""
        match header.kind:
            case 1:
                # A record that is charged nothing would pass any credit.
                good = header.size >= header.rows > 0 and header.body_bytes > 0
            case 2:
                good = header.body_bytes == _EVENT_FIELDS.size
                good = good and not (header.size or header.rows or header.fingerprint)
            case 3:
                good = not (header.body_bytes or header.position or header.rows)
                good = good and not header.fingerprint
            case 4:
                good = header.channel == _NO_CHANNEL
                good = good and not (header.position or header.size or header.rows)
                good = good and not header.fingerprint
            case _:
                raise self._bad("kind", header.channel, "1 to 4", header.kind)
        if not good:
            raise self._bad("header", header.channel, f"fields of kind {header.kind}", header)

    def _decode_buffer(self, header: FrameHeader, body: pa.Buffer) -> BufferFrame:
        schema = self._schema_for(header)
        try:
            message = pa.ipc.read_message(body)
            if has_compressed_body(message):
                raise _bad_body(header, "record batch", "one that is not compressed", "another")
            batch = pa.ipc.read_record_batch(message, schema.wire)
            if batch.num_rows != header.rows:
                raise _bad_body(header, "rows", header.rows, batch.num_rows)
            # Arrow's reader does not look at offsets; one that points outside would crash us later.
            batch.validate(full=True)
            if schema.recoded:
                batch = batch.cast(schema.logical)
        # Arrow raises EOFError at an end of stream where a batch should be.
        except (pa.ArrowException, OSError, EOFError, struct.error) as error:
            raise _bad_body(header, "record batch", "a valid one", error) from error
        buffer = Buffer(header.position, header.rows, header.size, (batch,))
        return BufferFrame(header.channel, buffer)

    def _schema_for(self, header: FrameHeader) -> WireSchema:
        edge = header.channel.edge
        try:
            schema = self._schemas.of(edge, self._schema_of_edge(edge))
        except LookupError as error:
            raise _bad_body(header, "edge", "an edge of the plan", edge) from error
        if schema.fingerprint != header.fingerprint:
            expected = f"fingerprint {schema.fingerprint:08x}"
            raise _bad_body(header, "schema", expected, f"{header.fingerprint:08x}")
        return schema

    def _bad(
        self, what: str, channel: ChannelId | None, expected: object, found: object
    ) -> WireError:
        return WireError(what, channel, self._offset, expected, found)


def _bad_body(header: FrameHeader, what: str, expected: object, found: object) -> WireError:
    return WireError(what, header.channel, header.offset, expected, found)


def _pack_event(event: ChannelEvent) -> bytes:
    match event:
        case Barrier(checkpoint, mode, created_ns):
            return _EVENT_FIELDS.pack(_BARRIER, _MODES[mode], checkpoint, created_ns)
        case EndOfInput():
            return _EVENT_FIELDS.pack(_END_OF_INPUT, 0, 0, 0)
        case Watermark(time_ns, idle):
            return _EVENT_FIELDS.pack(_WATERMARK, idle, 0, time_ns)
        case _:
            assert_never(event)


def _unpack_event(header: FrameHeader, body: memoryview) -> ChannelEvent:
    kind, code, checkpoint, created_ns = _EVENT_FIELDS.unpack(body)
    mode = _MODE_OF_CODE.get(code)
    if kind == _BARRIER and mode is not None:
        return Barrier(checkpoint, mode, created_ns)
    if kind == _END_OF_INPUT and not (code or checkpoint or created_ns):
        return EndOfInput()
    if kind == _WATERMARK and code in (0, 1) and not checkpoint:
        return Watermark(created_ns, idle=bool(code))
    raise _bad_body(header, "event", "a barrier, a watermark or the end", bytes(body).hex())
