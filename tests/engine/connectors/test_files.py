"""Files of every format are read once, from exact offsets, at any parallelism; mistakes are one
sentence.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from headrace.engine.connectors.files import FileSource
from headrace.engine.connectors.filesystem import UnreadableFile
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import RestoredState, SourceStatus

Make = Callable[..., Any]
FORMATS = ["parquet", "csv", "json", "arrow", "text"]


def write(path: Path, format: str, numbers: Sequence[int]) -> None:
    """A file of records that hold `numbers`, in small row groups and batches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": pa.array(numbers, pa.int64()), "word": [f"w{n}\n," for n in numbers]})
    match format:
        case "parquet":
            pq.write_table(table, path, row_group_size=11)
        case "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=11)
        case "csv":
            pa.csv.write_csv(table, path)
        case "json":
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        case _:
            path.write_text("\n".join(str(n) for n in numbers))


def numbers_of(table: pa.Table, format: str) -> list[int]:
    if format == "text":
        return sorted(int(line) for line in table.column("line").to_pylist())
    assert all(row["word"] == f"w{row['n']}\n," for row in table.to_pylist())
    return sorted(table.column("n").to_pylist())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_read_once_over_restarts_at_any_parallelism(
    tmp_path: Path, drive: Make, format: Any, seed: int
) -> None:
    for index, size in enumerate((50, 0, 3, 120, 27)):
        begin = 1000 * index
        write(tmp_path / f"{index}.{format}", format, range(begin, begin + size))
    source = FileSource(str(tmp_path), format, split_bytes=300)
    assert source.schema.names == (["line"] if format == "text" else ["n", "word"])
    run = drive(pickle.loads(pickle.dumps(source)), seed=seed)
    for parallelism in (2, 3, 1, 5):
        run.some(parallelism, steps=6)
    run.rest(2)
    expected = [1000 * i + n for i, size in enumerate((50, 0, 3, 120, 27)) for n in range(size)]
    assert numbers_of(run.table(), format) == expected
    run.rest(3)
    assert run.table().num_rows == 200


@pytest.mark.parametrize("format", ["parquet", "json", "text"])
def test_large_files_are_cut_and_shared(tmp_path: Path, format: Any, at: Make) -> None:
    write(tmp_path / "big", format, range(1000))
    source = FileSource(str(tmp_path / "big"), format, split_bytes=1000)
    assert source.schema
    shares = []
    for index in range(2):
        reader = source.reader()
        reader.open(at(index, 2))
        rows = 0
        while (polled := reader.poll(100)).status is SourceStatus.MORE:
            rows += polled.batches[0].num_rows
        shares.append(rows)
    assert sum(shares) == 1000
    assert min(shares) > 300


def test_offsets_of_text_are_bytes_at_line_boundaries(tmp_path: Path, at: Make) -> None:
    path = tmp_path / "lines"
    path.write_bytes("eins\r\nzwöi\n\nvier".encode())
    reader = FileSource(str(path), "text").reader()
    reader.open(at(0, 1))
    lines, offsets = [], []
    while (polled := reader.poll(1)).status is SourceStatus.MORE:
        lines += polled.batches[0].column("line").to_pylist()
        reader.commit()
        offsets += reader.snapshot()[0].table().column("offset").to_pylist()
    assert lines == ["eins", "zwöi", "", "vier"]
    assert offsets == [6, 12, 13, 17]


def test_globs_and_folders_pass_over_working_areas(tmp_path: Path, drive: Make) -> None:
    for name in ("a.txt", "sub/b.txt", "_headrace/j/x.txt", ".c.txt", "sub/_SUCCESS", "d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for path, expected in (
        ("", {"a.txt", "sub/b.txt", "d.csv"}),
        ("*", {"a.txt", "sub/b.txt", "d.csv"}),
        ("*.txt", {"a.txt"}),
    ):
        run = drive(FileSource(f"{tmp_path}/{path}", "text"))
        run.rest(2)
        assert set(run.column("line")) == expected


def test_any_fsspec_url_is_read(drive: Make) -> None:
    fsspec.filesystem("memory").pipe({"/here/a.txt": b"one\n", "/here/b.txt": b"two"})
    run = drive(FileSource("memory://here", "text", path_column="path"))
    run.some(2, steps=1)
    run.rest(1)
    assert sorted(run.column("line")) == ["one", "two"]
    assert sorted(run.column("path")) == ["/here/a.txt", "/here/b.txt"]


def test_a_given_schema_selects_and_casts(tmp_path: Path, drive: Make) -> None:
    schema = pa.schema([("n", pa.float64())])
    for format in ("parquet", "csv", "json", "arrow"):
        write(tmp_path / format / "f", format, [1, 2])
        run = drive(FileSource(str(tmp_path / format), format, schema))
        run.rest(1)
        assert run.table().equals(pa.table({"n": [1.0, 2.0]}))


def test_csv_without_header_takes_the_given_names(tmp_path: Path, drive: Make) -> None:
    (tmp_path / "f").write_text("1;a\n2;b\n")
    run = drive(FileSource(str(tmp_path), "csv", delimiter=";", column_names=["x", "y"]))
    run.some(1, steps=1)
    run.rest(1)
    assert run.table().to_pylist() == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]


def test_invalid_utf8_is_refused_with_its_byte_or_replaced(tmp_path: Path, drive: Make) -> None:
    (tmp_path / "f").write_bytes(b"ok\nb\xffd\n")
    with pytest.raises(UnreadableFile, match="byte 4 is not UTF-8"):
        drive(FileSource(str(tmp_path), "text")).rest(1)
    run = drive(FileSource(str(tmp_path), "text", errors="replace"))
    run.rest(1)
    assert run.column("line") == ["ok", "b\ufffdd"]


def test_dictionary_columns_travel_decoded(tmp_path: Path, drive: Make) -> None:
    table = pa.table({"c": pa.array(["x", "y", "x"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "f")
    run = drive(FileSource(str(tmp_path), "parquet"))
    run.rest(1)
    assert run.table().equals(pa.table({"c": ["x", "y", "x"]}))


def test_arrow_streams_are_read_like_arrow_files(tmp_path: Path, drive: Make) -> None:
    table = pa.table({"n": range(30)})
    with pa.ipc.new_stream(tmp_path / "f", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    run = drive(FileSource(str(tmp_path), "arrow"))
    run.some(1, steps=2)
    run.rest(2)
    assert run.column("n") == list(range(30))


def test_an_arrow_file_with_offsets_beyond_its_data_is_refused(tmp_path: Path, drive: Make) -> None:
    offsets = pa.py_buffer(struct.pack("<iii", 0, 2**31 - 1, 1))
    crafted = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"x")])
    schema = pa.schema([("word", pa.string())])
    with pa.ipc.new_file(tmp_path / "f", schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([crafted], schema=schema))
    with pytest.raises(UnreadableFile, match=r"cannot read .*/f: "):
        drive(FileSource(str(tmp_path), "arrow")).rest(1)


def test_a_folder_whose_name_looks_like_a_glob_is_a_folder(tmp_path: Path, drive: Make) -> None:
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]" / "f*.txt").write_text("one")
    for path in ("a[1]", "a[1]/f*.txt"):
        run = drive(FileSource(str(tmp_path / path), "text"))
        run.rest(1)
        assert run.column("line") == ["one"]


# --- following a folder


class Following:
    """Readers of a followed folder, under a clock that a test moves."""

    def __init__(self, source: Callable[..., FileSource], at: Make, parallelism: int) -> None:
        self.now_ns = 0
        self.source = source(clock=lambda: self.now_ns, follow_ns=10)
        self.at = at
        self.readers: list[Any] = []
        self.attempt(parallelism, None)

    def attempt(self, parallelism: int, saved: pa.Table | None) -> None:
        self.readers = [self.source.reader() for _ in range(parallelism)]
        for index, reader in enumerate(self.readers):
            reader.open(self.at(index, parallelism))
            if saved is not None:
                states = [RestoredState("splits", reader.snapshot()[0].kind, saved)]
                reader.restore(states)

    def save(self) -> pa.Table:
        return pa.concat_tables([reader.snapshot()[0].table() for reader in self.readers])

    def read(self) -> list[Any]:
        """First columns of all that the readers have, after one listing each."""
        values: list[Any] = []
        self.now_ns += 10
        for reader in self.readers:
            while (polled := reader.poll(4)).status is SourceStatus.MORE:
                values += polled.batches[0].column(0).to_pylist()
                reader.commit()
            assert polled.status is SourceStatus.IDLE
            assert 0 < polled.wait_ns <= 10
            reader.commit()
        return sorted(values)


def test_followed_text_is_read_line_by_line_as_it_grows(tmp_path: Path, at: Make) -> None:
    (tmp_path / "a").write_text("a1\na2")
    run = Following(lambda **o: FileSource(str(tmp_path), "text", **o), at, 2)
    assert run.read() == ["a1"]
    (tmp_path / "a").write_text("a1\na2 and more\n")
    (tmp_path / "b").write_text("b1\n")
    (tmp_path / "c").write_text("")
    assert run.read() == ["a2 and more", "b1"]
    run.attempt(3, run.save())
    with (tmp_path / "c").open("a") as file:
        file.write("c1\nhalf")
    (tmp_path / "d").write_text("d1\n")
    assert run.read() == ["c1", "d1"]
    run.attempt(1, run.save())
    with (tmp_path / "c").open("a") as file:
        file.write(" whole\n")
    assert run.read() == ["half whole"]
    assert run.read() == []


def test_followed_text_files_are_open_from_their_first_line_until_they_are_gone(
    tmp_path: Path, at: Make
) -> None:
    for name, text in (("a", "a1\n"), ("b", "b1\n"), ("c", "")):
        (tmp_path / name).write_text(text)
    run = Following(lambda **o: FileSource(str(tmp_path), "text", **o), at, 1)
    assert run.readers[0].open_splits() == frozenset()
    run.read()
    a, b = f"{tmp_path}/a[0:]", f"{tmp_path}/b[0:]"
    assert run.readers[0].open_splits() == {a, b}
    assert run.readers[0].open_splits() is run.readers[0].open_splits()
    run.attempt(1, run.save())
    assert run.readers[0].open_splits() == {a, b}
    run.read()
    (tmp_path / "a").rename(tmp_path / "_a")
    run.read()
    assert run.readers[0].open_splits() == {b}
    (tmp_path / "_a").rename(tmp_path / "a")
    run.read()
    assert run.readers[0].open_splits() == {a, b}


def test_of_files_that_end_only_those_that_were_begun_are_open(tmp_path: Path, at: Make) -> None:
    for name in "abc":
        write(tmp_path / name, "parquet", range(8))
    source = FileSource(str(tmp_path), "parquet")
    assert source.schema
    old = [source.reader(), source.reader()]
    for index, reader in enumerate(old):
        reader.open(at(index, 2))
        assert reader.open_splits() == frozenset()
        assert reader.poll(5).split in reader.open_splits()
        reader.commit()
    reader = source.reader()
    reader.open(at(0, 1))
    reader.restore([RestoredState(s.name, s.kind, s.table()) for o in old for s in o.snapshot()])
    assert reader.open_splits() == {f"{tmp_path}/a[0:]", f"{tmp_path}/b[0:]"}
    while (polled := reader.poll(5)).batches:
        assert polled.split in reader.open_splits()
    assert reader.open_splits() == frozenset()


def test_a_followed_csv_file_may_begin_with_half_a_header(tmp_path: Path, at: Make) -> None:
    schema = pa.schema([("x", pa.int64()), ("y", pa.string())])
    (tmp_path / "a").write_text("x")
    run = Following(lambda **o: FileSource(str(tmp_path), "csv", schema, **o), at, 1)
    assert run.read() == []
    (tmp_path / "a").write_text('x,y\n1,"o\nn')
    assert run.read() == []
    (tmp_path / "a").write_text('x,y\n1,"o\nne"\n')
    assert run.read() == [1]


def test_a_new_parquet_file_is_read_when_it_has_stopped_growing(tmp_path: Path, at: Make) -> None:
    write(tmp_path / "a", "parquet", [1])
    run = Following(lambda **o: FileSource(str(tmp_path), "parquet", **o), at, 2)
    run.read()
    write(tmp_path / "_b", "parquet", [2])
    whole = (tmp_path / "_b").read_bytes()
    (tmp_path / "b").write_bytes(whole[:50])
    assert run.read() == []
    (tmp_path / "b").write_bytes(whole)
    assert run.read() == []
    assert run.read() == [2]
    run.attempt(1, run.save())
    assert run.read() == run.read() == []


def test_a_followed_file_that_shrinks_is_refused(tmp_path: Path, at: Make) -> None:
    (tmp_path / "a").write_text("a1\na2\n")
    run = Following(lambda **o: FileSource(str(tmp_path), "text", **o), at, 1)
    run.read()
    (tmp_path / "a").write_text("a1\n")
    with pytest.raises(UnreadableFile, match="3 bytes long after 6 were read"):
        run.read()


# --- mistakes


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("part", [0.5, 0.0])
def test_a_file_that_became_shorter_after_listing_is_refused_before_half_a_record_is_read(
    tmp_path: Path, drive: Make, format: Any, part: float
) -> None:
    path = tmp_path / f"numbers.{format}"
    write(path, format, range(10_000, 10_100))
    source = FileSource(str(path), format, split_bytes=300)
    assert source.schema
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    run = drive(source)
    with pytest.raises(UnreadableFile, match=re.escape(str(path))):
        run.rest(2)
    assert set(numbers_of(run.table(), format)) <= set(range(10_000, 10_100))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_is_shorter_than_what_was_read_of_it_is_refused(
    tmp_path: Path, drive: Make, format: Any
) -> None:
    path = tmp_path / f"numbers.{format}"
    write(path, format, range(10_000, 10_100))
    run = drive(FileSource(str(path), format))
    run.some(1, steps=6)
    assert run.table().num_rows > 10
    write(path, format, range(10_000, 10_005))
    run.source = FileSource(str(path), format)
    with pytest.raises(UnreadableFile, match="must not become shorter"):
        run.rest(1)


def test_a_name_that_is_not_utf8_is_refused_when_the_pipeline_is_built(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("1\n")
    for path in (str(tmp_path), f"{tmp_path}/*.txt", str(tmp_path / os.fsdecode(b"a\xff.txt"))):
        with pytest.raises(UserError, match=r"a\\udcff\.txt: its name is not UTF-8; rename it"):
            _ = FileSource(path, "text").schema


def test_a_new_file_with_a_name_that_is_not_utf8_is_named(tmp_path: Path, at: Make) -> None:
    (tmp_path / "a").write_text("a1\n")
    run = Following(lambda **o: FileSource(str(tmp_path), "text", **o), at, 1)
    run.read()
    (tmp_path / os.fsdecode(b"b\xff")).write_text("b1\n")
    with pytest.raises(UnreadableFile, match="its name is not UTF-8"):
        run.read()


def test_mistakes_are_told_when_the_pipeline_is_built(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(b"1")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "f").write_text("no parquet")
    (tmp_path / "none").mkdir()
    cases: list[tuple[Any, ...]] = [
        ("no file matches", str(tmp_path / "missing"), "text"),
        ("no file matches", str(tmp_path / "*.csv"), "csv"),
        ("no file matches", str(tmp_path / "none"), "text"),
        ("cannot read .*bad/f", str(tmp_path / "bad"), "parquet"),
        ("cannot read .*bad/f", str(tmp_path / "bad"), "arrow"),
        ("cannot read .*bad/f", str(tmp_path / "bad"), "json"),
        ("is compressed", str(tmp_path / "x.gz"), "text"),
        ("cannot use 'nowhere://x'", "nowhere://x", "text"),
    ]
    for message, path, format in cases:
        with pytest.raises(UserError, match=message):
            _ = FileSource(path, format).schema
    with pytest.raises(UserError, match="format='xml' is unknown: choose one of parquet, csv"):
        FileSource("x", "xml")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(UserError, match="its columns are unknown: give schema="):
        _ = FileSource(str(tmp_path / "none"), "csv", follow_ns=1).schema
    with pytest.raises(UserError, match="leave schema= out"):
        FileSource("x", "text", pa.schema([("line", "binary")]))
    with pytest.raises(UserError, match="one ASCII character"):
        FileSource("x", "csv", delimiter=";;")
    with pytest.raises(UserError, match="a column of that name"):
        _ = FileSource(
            str(tmp_path / "x.*"), "parquet", pa.schema([("p", "string")]), path_column="p"
        ).schema


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "arrow"])
def test_files_of_different_columns_are_refused(tmp_path: Path, drive: Make, format: Any) -> None:
    write(tmp_path / "a", format, [1])
    (tmp_path / "other").mkdir()
    match format:
        case "csv":
            (tmp_path / "b").write_text("n,other\n1,2\n")
        case "json":
            (tmp_path / "b").write_text('{"n": 1, "other": 2}\n')
        case "parquet":
            pq.write_table(pa.table({"n": [1], "other": [2]}), tmp_path / "b")
        case _:
            with pa.ipc.new_file(tmp_path / "b", pa.schema([("n", "int64")])) as writer:
                writer.write_table(pa.table({"n": [1]}))
    with pytest.raises((UserError, UnreadableFile), match=r"cannot read .*/b: .*(column|field)"):
        drive(FileSource(str(tmp_path), format)).rest(1)


def test_differing_types_are_refused_unless_a_schema_is_given(tmp_path: Path, drive: Make) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a")
    pq.write_table(pa.table({"n": ["2"]}), tmp_path / "b")
    with pytest.raises(UserError, match="'n' is string, but int64 in the first file; give schema="):
        _ = FileSource(str(tmp_path), "parquet").schema
    run = drive(FileSource(str(tmp_path), "parquet", pa.schema([("n", pa.int64())])))
    run.rest(1)
    assert run.column("n") == [1, 2]


def test_a_value_that_is_not_of_its_columns_type_is_refused_with_its_place(
    tmp_path: Path, drive: Make
) -> None:
    (tmp_path / "f").write_text("n\n1\n2\nthree\n")
    source = FileSource(str(tmp_path), "csv", pa.schema([("n", pa.int64())]))
    with pytest.raises(UnreadableFile, match=r"bytes 2 to 12: .*'three'") as caught:
        drive(source).rest(1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_file_that_vanishes_is_named(tmp_path: Path, drive: Make) -> None:
    (tmp_path / "f").write_text("1\n")
    run = drive(FileSource(str(tmp_path), "text"))
    assert run.source.schema
    (tmp_path / "f").unlink()
    with pytest.raises(UnreadableFile, match="is gone"):
        run.rest(1)
