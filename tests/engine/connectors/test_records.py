"""Records are cut where they end, and offsets are exact."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.connectors import records
from headrace.engine.connectors.filesystem import UnreadableFile
from headrace.engine.connectors.records import RecordReader, csv_record_ends, line_ends
from headrace.engine.connectors.splits import OPEN_END


class SmallReads(io.BytesIO):
    """A file that gives few bytes at a time, so that records lie across reads."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(5, size or 5))


def reader(
    data: bytes,
    *,
    start: int = 0,
    end: int = OPEN_END,
    offset: int | None = None,
    ends: records.RecordEnds = line_ends,
    growing: bool = False,
) -> RecordReader:
    return RecordReader(
        SmallReads(data),
        "file",
        start=start,
        end=end,
        offset=start if offset is None else offset,
        record_ends=ends,
        tail_is_record=not growing,
    )


def all_of(source: RecordReader, records_max: int = 1) -> list[bytes]:
    chunks = []
    while (chunk := source.take(records_max)) is not None:
        chunks.append(chunk)
    return chunks


LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=12)


@given(lines=LINES, cuts=st.lists(st.integers(min_value=0, max_value=150), max_size=4))
def test_ranges_of_a_file_together_hold_each_line_once(
    lines: Sequence[bytes], cuts: list[int]
) -> None:
    data = b"\n".join(lines).removeprefix(b"\xef\xbb\xbf")
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), OPEN_END]
    found = [
        line
        for start, end in pairwise(bounds)
        for line in all_of(reader(data, start=start, end=end))
    ]
    assert found == io.BytesIO(data).readlines()
    assert b"".join(found) == data


@given(lines=LINES, records_max=st.integers(min_value=1, max_value=3))
def test_reading_goes_on_at_every_offset(lines: Sequence[bytes], records_max: int) -> None:
    data = b"\n".join(lines).removeprefix(b"\xef\xbb\xbf")
    source = reader(data)
    read = b""
    while (chunk := source.take(records_max)) is not None:
        read += chunk
        assert source.offset == len(read)
        rest = all_of(reader(data, offset=source.offset), 2)
        assert read + b"".join(rest) == data


@given(rows=st.lists(st.lists(st.text('ab",\n\r', max_size=6), min_size=2, max_size=2), max_size=8))
def test_csv_records_end_where_pythons_csv_module_ends_them(rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    data = text.getvalue().encode()
    found = all_of(reader(data, ends=csv_record_ends(",")))
    assert b"".join(found) == data
    assert [next(csv.reader(io.StringIO(r.decode(), newline=""))) for r in found] == rows


def test_a_stray_quote_is_refused_with_its_byte() -> None:
    with pytest.raises(UnreadableFile, match="byte 7: a quote in the middle"):
        all_of(reader(b'a,b\n1,5" disk\n', ends=csv_record_ends(",")))


def test_a_quote_that_is_never_closed_is_refused() -> None:
    source = reader(b'a,b\n1,"x\n2,y\n', ends=csv_record_ends(","))
    assert source.take(1) == b"a,b\n"
    with pytest.raises(UnreadableFile, match="record at byte 4 opens a quote"):
        source.take(1)


def test_an_unfinished_line_waits_while_the_file_may_grow() -> None:
    source = reader(b"one\ntw", growing=True)
    assert all_of(source) == [b"one\n"]
    assert source.offset == 4
    assert all_of(reader(b"one\ntwo\n", offset=4, growing=True)) == [b"two\n"]


def test_a_byte_order_mark_is_no_part_of_the_first_record() -> None:
    source = reader(b"\xef\xbb\xbfone\ntwo\n")
    assert source.take(1) == b"one\n"
    assert source.offset == 7


def test_a_record_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 100)
    monkeypatch.setattr(records, "_READ_BYTES", 5)
    with pytest.raises(UnreadableFile, match="no record ends within 100 bytes of byte 3"):
        all_of(reader(b"ab\n" + b"x" * 1000))


def test_line_ends_are_exclusive() -> None:
    assert np.array_equal(line_ends(b"a\n\nb"), [2, 3])
