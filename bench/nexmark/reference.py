"""What the queries must answer, computed in one piece over all events with NumPy.

An independent computation: no windows, watermarks or state, only whole columns. Rows are tuples of
numbers and strings; times are milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from .events import Coded, Column, Numbers, auctions, bids, persons

Cell = int | float | str
Row = tuple[Cell, ...]
Answer = Counter[Row]

#: Queries whose answer is every bid: their rows are counted and summed.
DIGESTED = (0, 1)
_WINDOW_MS, _SLIDES_MS = 10_000, 2_000


def expected(query: int, events: int, seed: int = 0) -> Answer:
    """The rows of a query's answer; of those with too many rows one row of `digest`."""
    return Counter(_ANSWERS[query](np.arange(events, dtype=np.int64), seed))


def digest(
    auction: Numbers, bidder: Numbers, at_ms: Numbers, price: Numbers, extra_bytes: int
) -> Row:
    """How many rows, a sum over products that bind each row's columns together, modulo 2^64, and
    the length of all `extra`.
    """
    with np.errstate(over="ignore"):
        products = (auction + 31 * price) * (bidder + at_ms)
        return len(auction), int(np.sum(products.view(np.uint64))), extra_bytes


def thousandths(prices: Numbers) -> Numbers:
    """Prices in euros as whole thousandths."""
    found: Numbers = np.floor(prices.astype(np.float64) * 0.908 * 1000 + 0.5).astype(np.int64)
    return found


def _pass_through(numbers: Numbers, seed: int) -> list[Row]:
    all_bids = bids(numbers, seed)
    return [_of_bids(all_bids, _numbers(all_bids["price"]))]


def _currency_conversion(numbers: Numbers, seed: int) -> list[Row]:
    all_bids = bids(numbers, seed)
    return [_of_bids(all_bids, thousandths(_numbers(all_bids["price"])))]


def _of_bids(all_bids: Mapping[str, Column], prices: Numbers) -> Row:
    auction, bidder, at_ms = (
        _numbers(all_bids[name]) for name in ("auction", "bidder", "date_time")
    )
    extra_bytes = sum(map(len, _texts(all_bids["extra"])))
    return digest(auction, bidder, at_ms, prices, extra_bytes)


def _selection(numbers: Numbers, seed: int) -> list[Row]:
    auction, price = (_numbers(bids(numbers, seed)[name]) for name in ("auction", "price"))
    kept = auction % 123 == 0
    return list(zip(auction[kept].tolist(), price[kept].tolist(), strict=True))


def _local_items(numbers: Numbers, seed: int) -> list[Row]:
    people, sales = persons(numbers, seed), auctions(numbers, seed)
    names, cities, states = (_texts(people[name]) for name in ("name", "city", "state"))
    known = dict(
        zip(_numbers(people["id"]).tolist(), zip(names, cities, states, strict=True), strict=True)
    )
    rows: list[Row] = []
    for auction, seller, category in zip(
        *(_numbers(sales[name]).tolist() for name in ("id", "seller", "category")), strict=True
    ):
        if category == 10 and seller in known and known[seller][2] in ("OR", "ID", "CA"):
            rows.append((*known[seller], auction))
    return rows


def _average_prices(numbers: Numbers, seed: int) -> list[Row]:
    sales, offers = auctions(numbers, seed), bids(numbers, seed)
    first = _numbers(sales["id"])[0] if len(_numbers(sales["id"])) else 0
    place = _numbers(offers["auction"]) - first
    at = _numbers(offers["date_time"])
    opened, expires = _numbers(sales["date_time"])[place], _numbers(sales["expires"])[place]
    counts = (opened <= at) & (at <= expires)
    winning = np.zeros(len(_numbers(sales["id"])), dtype=np.int64)
    np.maximum.at(winning, place[counts], _numbers(offers["price"])[counts])
    categories = _numbers(sales["category"])
    rows: list[Row] = []
    for category in np.unique(categories[winning > 0]).tolist():
        prices = winning[(categories == category) & (winning > 0)]
        rows.append((category, len(prices), int(prices.sum()) / len(prices)))
    return rows


def _hot_items(numbers: Numbers, seed: int) -> list[Row]:
    offers = bids(numbers, seed)
    auction, at = _numbers(offers["auction"]), _numbers(offers["date_time"])
    rows: list[Row] = []
    if not len(at):
        return rows
    first = at.min() // _SLIDES_MS * _SLIDES_MS - _WINDOW_MS + _SLIDES_MS
    for start in range(int(first), int(at.max()) + 1, _SLIDES_MS):
        within = auction[(at >= start) & (at < start + _WINDOW_MS)]
        found, counts = np.unique(within, return_counts=True)
        hot = counts == counts.max(initial=0)
        rows += [
            (start, a, n) for a, n in zip(found[hot].tolist(), counts[hot].tolist(), strict=True)
        ]
    return rows


def _highest_bids(numbers: Numbers, seed: int) -> list[Row]:
    offers = bids(numbers, seed)
    columns = [_numbers(offers[name]) for name in ("auction", "bidder", "price", "date_time")]
    windows = columns[3] // _WINDOW_MS * _WINDOW_MS
    rows: list[Row] = []
    for start in np.unique(windows).tolist():
        own = [column[windows == start] for column in columns]
        best = own[2] == own[2].max()
        rows += [(start, *row) for row in zip(*(c[best].tolist() for c in own), strict=True)]
    return rows


def _new_users(numbers: Numbers, seed: int) -> list[Row]:
    people, sales = persons(numbers, seed), auctions(numbers, seed)
    starts = _numbers(sales["date_time"]) // _WINDOW_MS * _WINDOW_MS
    sellers = set(zip(_numbers(sales["seller"]).tolist(), starts.tolist(), strict=True))
    came = _numbers(people["date_time"]) // _WINDOW_MS * _WINDOW_MS
    ids = _numbers(people["id"]).tolist()
    rows = zip(ids, _texts(people["name"]), came.tolist(), strict=True)
    return [row for row in rows if (row[0], row[2]) in sellers]


def _numbers(column: Column) -> Numbers:
    assert not isinstance(column, Coded), "a column of numbers"
    return column


def _texts(column: Column) -> list[str]:
    assert isinstance(column, Coded), "a column of strings"
    return [column.values[code] for code in column.codes.tolist()]


_ANSWERS: dict[int, Callable[[Numbers, int], list[Row]]] = {
    0: _pass_through,
    1: _currency_conversion,
    2: _selection,
    3: _local_items,
    4: _average_prices,
    5: _hot_items,
    7: _highest_bids,
    8: _new_users,
}
