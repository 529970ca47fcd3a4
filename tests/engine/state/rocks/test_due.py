from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.state.rocks.database import RocksDatabase
from headrace.engine.state.rocks.due import DueIndex
from headrace.engine.state.rocks.files import RocksSizes

GROUPS = range(4, 8)


class Index:
    """An index over rows that are named by a number."""

    def __init__(self, folder: Path) -> None:
        self.database = RocksDatabase(str(folder), "d", GROUPS, RocksSizes(1 << 20, 1 << 20))
        self.index = DueIndex(self.database, "due", [pa.field("n", pa.int64())], GROUPS, 16)

    def keys(self, *due: tuple[int, int, int]) -> list[bytes]:
        """Of (time, number, key group)."""
        times, numbers, groups = zip(*due, strict=True)
        return self.index.keys(
            np.array(times, np.int64), [pa.array(numbers)], np.array(groups, np.uint16)
        )

    def due(self, until_ns: int, count_max: int = 100) -> tuple[list[tuple[int, int]], bool]:
        """What is due, as (time, number), which is taken out."""
        keys, done = self.index.due(until_ns, count_max)
        self.index.replace(keys, ())
        times, (numbers,), _ = self.index.columns(keys)
        return list(zip(times.tolist(), numbers.to_pylist(), strict=True)), done

    def commit(self) -> None:
        self.index.rows.stage()
        self.database.commit()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "database")
    yield made
    made.database.close()


def test_it_comes_in_the_order_of_time_whatever_the_key_group(opened: Index) -> None:
    opened.index.replace((), opened.keys((5, 1, 7), (-3, 2, 4), (0, 3, 5), (9, 4, 4), (-8, 5, 6)))
    assert opened.due(5, 3) == ([(-8, 5), (-3, 2), (0, 3)], False)
    opened.commit()
    assert opened.due(5, 3) == ([(5, 1)], True)
    assert opened.due(8) == ([], True)
    assert opened.due(9) == ([(9, 4)], True)


def test_what_is_replaced_is_due_at_the_new_time_alone(opened: Index) -> None:
    first = opened.keys((5, 1, 4), (6, 2, 4))
    opened.index.replace((), first)
    opened.commit()
    assert opened.due(0) == ([], True)
    opened.index.replace(first, opened.keys((3, 1, 4), (6, 2, 4)))
    assert opened.due(5) == ([(3, 1)], True)
    opened.commit()
    assert opened.due(10) == ([(6, 2)], True)


def test_groups_without_anything_due_are_not_read_again(
    opened: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.index.replace((), opened.keys((50, 1, 4)))
    opened.commit()
    assert opened.due(10) == ([], True)
    monkeypatch.setattr(opened.index.rows, "cursor", None)
    assert opened.due(49) == ([], True)


def test_what_was_taken_out_is_not_stepped_over_again(
    opened: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.index.replace((), opened.keys((5, 1, 4), (5, 2, 4), (7, 3, 4)))
    opened.commit()
    assert opened.due(5, 1) == ([(5, 1)], False)
    opened.commit()
    begun: list[bytes] = []
    read = opened.index.rows.range

    def noted(cursor: Any, lower: bytes, upper: bytes) -> Any:
        begun.append(lower)
        return read(cursor, lower, upper)

    monkeypatch.setattr(opened.index.rows, "range", noted)
    assert opened.due(5) == ([(5, 2)], True)
    assert begun == opened.keys((5, 2, 4))
    opened.index.replace((), opened.keys((1, 4, 4)))
    assert opened.due(9) == ([(1, 4), (7, 3)], True)
