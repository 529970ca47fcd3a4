"""The queries of Nexmark that need no SQL, with headrace's public API.

Each is a function of the streams of events, and returns the stream of its answers. `Events(hr.read.
sequence(rows, keys=None, name="numbers"))` makes the events; event times grow with the numbers, so
no watermark needs a delay.

Source: the queries of the Nexmark benchmark, as Flink's edition states them in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

from . import events
from .events import Column, Numbers

MS = pa.timestamp("ms")
ID, TEXT = pa.int64(), pa.string()

PERSON = pa.schema(
    [
        *(("id", ID), ("name", TEXT), ("email", TEXT), ("credit_card", TEXT)),
        *(("city", TEXT), ("state", TEXT), ("date_time", MS), ("extra", TEXT)),
    ]
)
AUCTION = pa.schema(
    [
        *(("id", ID), ("item_name", TEXT), ("description", TEXT), ("initial_bid", ID)),
        *(("reserve", ID), ("date_time", MS), ("expires", MS), ("seller", ID)),
        *(("category", ID), ("extra", TEXT)),
    ]
)
BID = pa.schema(
    [
        *(("auction", ID), ("bidder", ID), ("price", ID), ("channel", TEXT)),
        *(("url", TEXT), ("date_time", MS), ("extra", TEXT)),
    ]
)

Make = Callable[[Numbers, int], dict[str, Column]]


def table_of(make: Make, schema: pa.Schema, numbers: Numbers, seed: int) -> pa.RecordBatch:
    """The events of one kind among the numbers."""
    arrays = [
        pa.array(column.values).take(pa.array(column.codes))
        if isinstance(column, events.Coded)
        else pa.array(column).view(schema.field(name).type)
        for name, column in make(numbers, seed).items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class Events:
    """The three streams of events, made from a stream of numbers (`hr.read.sequence`)."""

    numbers: hr.Stream
    seed: int = 0

    @cached_property
    def persons(self) -> hr.Stream:
        """All persons."""
        return self._made("persons", events.persons, PERSON)

    @cached_property
    def auctions(self) -> hr.Stream:
        """All auctions."""
        return self._made("auctions", events.auctions, AUCTION)

    @cached_property
    def bids(self) -> hr.Stream:
        """All bids."""
        return self._made("bids", events.bids, BID)

    def _made(self, name: str, make: Make, schema: pa.Schema) -> hr.Stream:
        function = partial(_from_numbers, make=make, schema=schema, seed=self.seed)
        made = self.numbers.map_batches(function, schema=schema, name=name)
        return made.with_watermark("date_time", "0s")


def _from_numbers(
    batch: pa.RecordBatch, *, make: Make, schema: pa.Schema, seed: int
) -> pa.RecordBatch:
    return table_of(make, schema, batch["sequence"].to_numpy(), seed)


def pass_through(of: Events) -> hr.Stream:
    """Query 0: all bids."""
    return of.bids


def currency_conversion(of: Events) -> hr.Stream:
    """Query 1: all bids, prices in euros."""
    euros = pc.field("price").cast(pa.float64()) * 0.908
    return of.bids.select("auction", "bidder", "date_time", "extra", price=euros)


def selection(of: Events) -> hr.Stream:
    """Query 2: bids for some auctions."""
    auction = pc.field("auction")
    return of.bids.filter(auction - auction / 123 * 123 == 0).select("auction", "price")


class LocalItems(hr.CoProcessor):
    """Joins sellers with their auctions for ever; a stream's join is bounded in event time."""

    seller = hr.map_state(TEXT, TEXT)
    waiting = hr.list_state(ID)

    def process_left(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A person, who may have auctions already."""
        for column in ("name", "city", "state"):
            self.seller[column] = row[column]
        for auction in self.waiting:
            yield self._item(auction)
        self.waiting.clear()

    def process_right(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An auction, whose seller may not be known yet, or be none of these persons."""
        if "name" in self.seller:
            yield self._item(row["id"])
        else:
            self.waiting.append(row["id"])

    def _item(self, auction: int) -> dict[str, Any]:
        return {**dict(self.seller.items()), "id": auction}


LOCAL_ITEM = pa.schema([("name", TEXT), ("city", TEXT), ("state", TEXT), ("id", ID)])


def local_items(of: Events) -> hr.Stream:
    """Query 3: auctions of category 10 by sellers of three states."""
    near = of.persons.filter(pc.field("state").isin(["OR", "ID", "CA"]))
    sellers = near.select("id", "name", "city", "state").key_by("id")
    items = of.auctions.filter(pc.field("category") == 10).select("id", "seller").key_by("seller")
    return sellers.connect(items, LocalItems, schema=LOCAL_ITEM, name="local-items")


class WinningBids(hr.CoProcessor):
    """Gives out the highest bid of each auction when the auction expires, and forgets both.

    Bids may come before their auction, which event time cannot pass; bids for a forgotten auction
    wait in vain, and expire.
    """

    category = hr.value_state(ID)
    expires = hr.value_state(MS)
    highest = hr.value_state(ID, default=0)
    early = hr.list_state(pa.struct([("at", MS), ("price", ID)]), ttl="1s")

    def process_left(self, key: int, row: dict[str, Any]) -> None:
        """An auction opens; bids may have come before it."""
        self.category.value, self.expires.value = row["category"], row["expires"]
        for bid in self.early:
            self._bid(bid["at"], bid["price"])
        self.early.clear()
        self.timers.set(row["expires"])

    def process_right(self, key: int, row: dict[str, Any]) -> None:
        """A bid counts up to the auction's expiry."""
        at, price = row["date_time"], row["price"]
        if self.expires.value is not None:
            self._bid(at, price)
        # Few are kept: a lower bid that came later in event time can never win.
        elif not any(bid["at"] <= at and bid["price"] >= price for bid in self.early):
            self.early.append({"at": at, "price": price})

    def _bid(self, at: Any, price: int) -> None:
        if at <= self.expires.value and price > self.highest.value:
            self.highest.value = price

    def on_timer(self, key: int, time_ns: int) -> Iterator[dict[str, Any]]:
        """No bid counts any more."""
        if self.highest.value:
            yield {"category": self.category.value, "price": self.highest.value}
        for state in (self.category, self.expires, self.highest):
            state.clear()


def _rising(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bids above all earlier ones of their auction in this batch: others never win."""
    auction, price = batch["auction"].to_numpy(), batch["price"].to_numpy()
    order = np.lexsort((batch["date_time"].view(ID).to_numpy(), auction))
    # Auctions that follow each other have ranges of numbers of their own, so one maximum runs
    # through all of them.
    _, place = np.unique(auction[order], return_inverse=True)
    ranged = place * (price.max(initial=0) + 1) + price[order]
    before = np.maximum.accumulate(ranged)[:-1]
    rises = np.append(np.ones(len(ranged[:1]), dtype=bool), ranged[1:] > before)
    return batch.take(pa.array(np.sort(order[rises])))


WINNING_BID = pa.schema([("category", ID), ("price", ID)])


def average_prices(of: Events) -> hr.Stream:
    """Query 4: the average of winning bids per category; each change is a row."""
    opened = of.auctions.select("id", "category", "expires", "date_time").key_by("id")
    bids = of.bids.select("auction", "price", "date_time")
    rising = bids.map_batches(_rising, schema=bids.schema, name="rising").key_by("auction")
    winning = opened.connect(rising, WinningBids, schema=WINNING_BID, name="winning-bids")
    averages = winning.key_by("category")
    return averages.aggregate(n=hr.count(), average=hr.mean("price"), name="averages")


class Highest(hr.StatefulProcessor):
    """Keeps the rows of each window whose value is the highest, and gives them out at its end.

    Args:
        value: the column to compare.
        columns: of the results.
        end_ms: from the start of a window, its key, to its end.
    """

    best = hr.value_state(ID, default=-1)
    rows = hr.list_state(pa.list_(ID))

    def __init__(self, value: str, columns: tuple[str, ...], end_ms: int) -> None:
        self._value, self._columns, self._end_ns = value, columns, end_ms * 1_000_000 - 1

    def process(self, key: int, row: dict[str, Any]) -> None:
        """Keep the row if no other is higher."""
        if row[self._value] < self.best.value:
            return
        if row[self._value] > self.best.value:
            self.best.value = row[self._value]
            self.rows.clear()
            self.timers.set(key * 1_000_000 + self._end_ns)
        self.rows.append([row[column] for column in self._columns])

    def on_timer(self, key: int, time_ns: int) -> Iterator[dict[str, Any]]:
        """The window is complete."""
        for row in self.rows:
            yield {"window_ms": key, **dict(zip(self._columns, row, strict=True))}
        self.rows.clear()
        self.best.clear()


def _highest_rows(
    batch: pa.RecordBatch, *, value: str, at: str, every_ms: int, columns: tuple[str, ...]
) -> pa.RecordBatch:
    """Rows that no other of their window exceeds in this batch, so that few need a call."""
    windows = batch[at].view(pa.int64()).to_numpy() // every_ms
    values = batch[value].to_numpy()
    present, places = np.unique(windows, return_inverse=True)
    best = np.full(len(present), np.iinfo(np.int64).min)
    np.maximum.at(best, places, values)
    kept = pa.array(np.flatnonzero(values == best[places]))
    arrays = {name: batch[name].take(kept).view(pa.int64()) for name in columns}
    starts = pa.array(windows[values == best[places]] * every_ms)
    return pa.RecordBatch.from_pydict(
        {"window_ms": starts, "at": batch[at].take(kept), **arrays},
        schema=_candidates(columns),
    )


def _candidates(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([("window_ms", ID), ("at", MS), *((name, ID) for name in columns)])


def _highest(
    stream: hr.Stream, name: str, *, value: str, at: str, every_ms: int, columns: tuple[str, ...]
) -> hr.Stream:
    """Rows with the highest `value` of each window of `every_ms`; all of them if there are several.

    There is no aggregation that keeps whole rows, so a processor does.
    """
    narrowed = partial(_highest_rows, value=value, at=at, every_ms=every_ms, columns=columns)
    candidates = stream.map_batches(narrowed, schema=_candidates(columns), name=f"{name}-rows")
    timed = candidates.with_watermark("at", "0s")
    schema = pa.schema([("window_ms", ID), *((column, ID) for column in columns)])
    highest = Highest(value, columns, every_ms)
    return timed.key_by("window_ms").process(highest, schema=schema, name=name)


def hot_items(of: Events) -> hr.Stream:
    """Query 5: the auctions with the most bids of the last ten seconds, every two seconds."""
    bids = of.bids.select("auction", "date_time").key_by("auction")
    counts = bids.window(hr.sliding("10s", every="2s")).aggregate(n=hr.count(), name="bid-counts")
    # A window starts where its slide starts, so windows of two seconds tell the starts apart.
    return _highest(
        counts, "hot-items", value="n", at="window_start", every_ms=2000, columns=("auction", "n")
    )


def highest_bids(of: Events) -> hr.Stream:
    """Query 7: the highest bids of each ten seconds."""
    return _highest(
        of.bids,
        "highest-bids",
        value="price",
        at="date_time",
        every_ms=10_000,
        columns=("auction", "bidder", "price", "date_time"),
    )


def new_users(of: Events) -> hr.Stream:
    """Query 8: persons who came and opened an auction within the same ten seconds."""
    sales = of.auctions.select("seller", "date_time").key_by("seller")
    sellers = sales.window(hr.tumbling("10s")).aggregate(n=hr.count(), name="sellers")
    timed = sellers.select("seller", starts=pc.field("window_start"))
    persons = of.persons.select("id", "name", "date_time")
    new = persons.join(
        timed.with_watermark("starts", "0s", name="sellers-watermark"),
        {"id": "seller"},
        window=hr.tumbling("10s"),
        name="new-users",
    )
    return new.select("id", "name", "window_start")


QUERIES: dict[int, Callable[[Events], hr.Stream]] = {
    0: pass_through,
    1: currency_conversion,
    2: selection,
    3: local_items,
    4: average_prices,
    5: hot_items,
    7: highest_bids,
    8: new_users,
}
