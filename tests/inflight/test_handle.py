"""Handles: closed values that go into JSON and come back."""

from __future__ import annotations

import msgspec
import pytest

from headrace.inflight.handle import BufferHandle, ChannelStateHandle

FIRST = BufferHandle("chk-1/worker-0-e1.segment", 16, 640, "0" * 16, blob_rows=8, start=3, rows=5)
SECOND = BufferHandle(
    "chk-2/worker-0-e1.segment", 16, 8, "1" * 16, 4, 0, 4, [(0, 3, 1), (1, 2, 0)], 2
)
HANDLE = ChannelStateHandle(0, 1, 2, "input", 40, [FIRST, SECOND], ended=True)


def test_the_end_is_the_position_after_the_last_record() -> None:
    assert HANDLE.end == 49
    assert ChannelStateHandle(0, 1, 2, "output", 40, [], ended=True).end == 40


def test_rows_count_before_filters_and_skipping_for_the_end() -> None:
    assert ChannelStateHandle(0, 1, 2, "input", 0, [SECOND], ended=False).end == SECOND.rows


def test_a_handle_comes_back_from_json_as_it_was() -> None:
    assert msgspec.json.decode(msgspec.json.encode(HANDLE), type=ChannelStateHandle) == HANDLE


def test_filters_and_skip_may_be_left_out() -> None:
    fields = {k: v for k, v in msgspec.to_builtins(SECOND).items() if k not in ("filters", "skip")}
    read = msgspec.convert(fields, BufferHandle)
    assert (read.filters, read.skip) == ([], 0)


@pytest.mark.parametrize("kind", [BufferHandle, ChannelStateHandle])
def test_unknown_fields_are_refused(kind: type[msgspec.Struct]) -> None:
    fields = msgspec.to_builtins(FIRST if kind is BufferHandle else HANDLE)
    with pytest.raises(msgspec.ValidationError, match="unknown field `code`"):
        msgspec.convert(fields | {"code": "x"}, kind)
