"""Partitions as plain data: there and back, and nothing from elsewhere."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.engine.connectors.spark.plain import from_plain, to_plain
from headrace.engine.contract.errors import HeadraceError


class RangePartition(InputPartition):
    def __init__(self, start: int, end: Any) -> None:
        raise_if_called.append(start)
        self.start, self.end = start, end


@dataclass
class NotAPartition:
    value: int = 0


class Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Any:
        return iter(())


raise_if_called: list[int] = []
VALUES = [
    None,
    7,
    1.5,
    "text",
    True,
    b"\x00\xff",
    (1, ("a", None)),
    [1, [2]],
    {"k": {"x": (1,)}},
    Decimal("1.20"),
    dt.date(2026, 1, 2),
    dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
]


@pytest.mark.parametrize("value", VALUES)
def test_fields_come_back(value: object) -> None:
    text = to_plain(RangePartition(3, value), "partition")
    raise_if_called.clear()
    found = from_plain(text, InputPartition, Reader(), "partition")
    assert isinstance(found, RangePartition)
    assert (found.start, found.end) == (3, value)
    assert type(found.end) is type(value)
    assert not raise_if_called, "a constructor may open what it likes"


def test_the_plain_partition_comes_back() -> None:
    found = from_plain(to_plain(InputPartition(5), "p"), InputPartition, Reader(), "p")
    assert (type(found), found.value) == (InputPartition, 5)


def test_a_class_that_was_shipped_by_value_finds_its_own() -> None:
    class Local(InputPartition):
        pass

    class LocalReader(Reader):
        def partitions(self) -> list[InputPartition]:
            return [Local(1)]

    found = from_plain(to_plain(Local(1), "p"), InputPartition, LocalReader(), "p")
    assert isinstance(found, Local)


@pytest.mark.parametrize("name", ["NotAPartition", "os.system", "pytest", "Missing", "dt.date"])
def test_other_classes_are_refused(name: str) -> None:
    with pytest.raises(HeadraceError, match="has no InputPartition named"):
        from_plain(json.dumps({"class": name, "fields": {}}), InputPartition, Reader(), "p")


def test_a_field_that_no_checkpoint_holds_is_named() -> None:
    with pytest.raises(HeadraceError, match="partition of 'x': field 'end' is a object"):
        to_plain(RangePartition(0, object()), "partition of 'x'")
