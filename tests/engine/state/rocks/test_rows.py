from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.contract.operators import StateLayout
from headrace.engine.state.rocks.database import RocksDatabase
from headrace.engine.state.rocks.files import RocksSizes
from headrace.engine.state.rocks.rows import RocksRows

LAYOUT = StateLayout("s", 1, pa.schema([("k", pa.string()), ("v", pa.string())]))
KEYS = st.binary(min_size=1, max_size=2)


class Database:
    """A database with one state."""

    def __init__(self, folder: Path) -> None:
        self.database = RocksDatabase(str(folder), "d", range(16), RocksSizes(1 << 20, 1 << 20))
        self.rows = RocksRows(self.database, LAYOUT)

    def commit(self) -> None:
        self.rows.stage()
        self.database.commit()

    def between(self, lower: bytes, upper: bytes) -> list[tuple[bytes, bytes]]:
        return list(self.rows.range(self.rows.cursor(), lower, upper))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "database")
    yield made
    made.database.close()


@settings(max_examples=15)
@given(st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=1)), max_size=4), KEYS, KEYS)
def test_ranges_and_reads_see_what_was_written_last(
    calls: list[dict[bytes, bytes | None]], lower: bytes, upper: bytes
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        opened = Database(Path(folder) / "database")
        expected: dict[bytes, bytes] = {}
        for number, written in enumerate(calls):
            opened.rows.put(written.items())
            for key, value in written.items():
                expected.pop(key, None)
                if value is not None:
                    expected[key] = value
            keys = sorted(expected)
            assert opened.between(lower, upper) == [
                (key, expected[key]) for key in keys if lower <= key < upper
            ]
            asked = [*keys, b"absent", *written]
            assert opened.rows.get(asked) == [expected.get(key) for key in asked]
            if number % 2:
                opened.commit()
                opened.database.snapshot()
        opened.database.close()


def test_a_snapshot_that_waits_does_not_hide_what_came_after_it(opened: Database) -> None:
    opened.rows.put([(b"a", b"1")])
    opened.commit()
    frozen = opened.database.snapshot()
    opened.rows.put([(b"b", b"2"), (b"a", None)])
    opened.commit()
    opened.database.settle()
    assert opened.rows.get([b"a", b"b"]) == [None, b"2"]
    assert opened.between(b"a", b"c") == [(b"b", b"2")]
    frozen.release()
