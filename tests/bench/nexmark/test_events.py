"""Nexmark's events: functions of their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.nexmark.events import (
    BEGIN_MS,
    FIRST_ID,
    Coded,
    Column,
    auctions,
    bids,
    mixed,
    persons,
)


def plain(column: Column) -> list[int] | list[str]:
    if isinstance(column, Coded):
        return [column.values[code] for code in column.codes.tolist()]
    values: list[int] = column.tolist()
    return values


@pytest.mark.parametrize("make", [persons, auctions, bids])
def test_every_split_makes_its_own_events(make: object) -> None:
    assert callable(make)
    whole = make(np.arange(5000), 7)
    parts = [make(np.arange(5000)[part::3], 7) for part in range(3)]
    for name, column in whole.items():
        rows = [value for part in parts for value in plain(part[name])]
        assert sorted(rows) == sorted(plain(column)), name
    assert plain(make(np.arange(5000), 8)["extra"]) != plain(whole["extra"])


def test_kinds_are_one_to_three_to_forty_six() -> None:
    numbers = np.arange(10_000)
    counts = [len(plain(make(numbers, 0)["extra"])) for make in (persons, auctions, bids)]
    assert counts == [200, 600, 9200]


def test_bids_are_for_auctions_and_by_persons_that_exist_half_of_them_hot() -> None:
    numbers = np.arange(100_000)
    made = {name: np.array(plain(column)) for name, column in bids(numbers, 0).items()}
    newest = FIRST_ID + (made["date_time"] - BEGIN_MS) * 10 // 50 * 3 + 5
    assert (made["auction"] >= FIRST_ID).all()
    assert (made["auction"] <= newest).all()
    assert (made["bidder"] < FIRST_ID + 2000).all()
    hot = np.mean((made["auction"] - FIRST_ID) % 100 == 0)
    assert hot == pytest.approx(0.505, abs=0.01)
    sold = {name: np.array(plain(column)) for name, column in auctions(numbers, 0).items()}
    lengths = sold["expires"] - sold["date_time"]
    assert (lengths.min(), lengths.max()) == (1, 333)
    assert sold["id"].tolist() == list(range(FIRST_ID, FIRST_ID + 6000))


def test_events_never_change_or_other_engines_answer_differently() -> None:
    """The Java of `bench/peers/flink_nexmark` makes the same."""
    assert mixed(np.array([0, 1, 12345]), 3).tolist() == [
        2185194620014831856,
        2092789425003139053,
        3915533934447771449,
    ]
    bid = {name: plain(column) for name, column in bids(np.array([654_321]), 0).items()}
    assert bid == {
        "auction": [40200],
        "bidder": [14001],
        "price": [8260000],
        "channel": ["Google"],
        "url": ["ntkxzumqehopphssxvsiycadceyskp"],
        "date_time": [1700000065432],
        "extra": ["xexfjdrufvtcbkydsjuzmfgxdopavvmfnopuziak"],
    }
