"""What `map_async` refuses before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr

NUMBERS = hr.read.sequence(10, name="numbers")


async def ask(row: dict[str, Any]) -> dict[str, Any]:
    return row


def test_it_keeps_the_schema_unless_told_otherwise() -> None:
    assert NUMBERS.map_async(ask, name="ask").schema == NUMBERS.schema


def test_it_needs_a_name() -> None:
    with pytest.raises(hr.UserError, match=r"map_async needs name=.*name='map_async'"):
        NUMBERS.map_async(ask)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"capacity": 0}, "map_async: capacity=0 is not a whole number from 1"),
        ({"retries": -1}, "map_async: retries=-1 is not a number of further attempts"),
        ({"rate": 0}, "map_async: rate=0 is not a number of calls a second above 0"),
        ({"timeout": 0}, "map_async: timeout=0 lets no call end"),
        ({"backoff": "soon"}, "map_async: backoff"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(hr.UserError, match=sentence):
        NUMBERS.map_async(ask, name="ask", **options)


def test_a_generator_is_refused() -> None:
    def many(row: dict[str, Any]) -> Any:
        yield row

    with pytest.raises(hr.UserError, match="return the row instead of yielding it"):
        NUMBERS.map_async(many, name="ask")
