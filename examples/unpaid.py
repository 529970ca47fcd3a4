"""Timers: tells of every order that was not paid in time, in the time of the events.

headrace run examples/unpaid.py --runner threads
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

IN_TIME = timedelta(microseconds=50)


class Reminders(hr.StatefulProcessor):
    """Waits for an order's payment."""

    paid = hr.value_state(pa.bool_(), default=False)

    def process(self, key: int, row: dict[str, Any]) -> None:
        """Handle an order or its payment, whichever comes first."""
        if row["payment"]:
            self.paid.value = True
            for time in self.timers:
                self.timers.delete(time)
        elif not self.paid.value:
            self.timers.set(row["at"] + IN_TIME)

    def on_timer(self, key: int, time_ns: int) -> Iterator[dict[str, Any]]:
        """Nobody has paid."""
        yield {"order": key}


# Two events an order, the order and then its payment; one order in eight is never paid.
events = hr.read.sequence(20_000, keys=None, name="events").select(
    order=pc.field("key") / 2,
    payment=pc.bit_wise_and(pc.field("key"), 1) == 1,
    at=pc.field("timestamp").cast(pa.timestamp("ns")),
)
seen = events.filter(~pc.field("payment") | (pc.bit_wise_and(pc.field("order"), 7) != 0))
unpaid = (
    seen.with_watermark("at", delay="10us", idle_after="5s", name="times")
    .key_by("order")
    .process(Reminders, schema=pa.schema([("order", pa.int64())]), name="reminders")
)

job = hr.Job("unpaid", unpaid.write.collect(name="out"), parallelism=2)

if __name__ == "__main__":
    job.run()
