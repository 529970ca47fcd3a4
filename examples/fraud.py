"""Timers and state: a small payment and then a large one within a minute is told as fraud.

    headrace run examples/fraud.py --runner threads

Its unit test, with a crash in it, is in docs/testing.md.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

SMALL, LARGE = 1, 500


class Rules(hr.StatefulProcessor):
    """Remembers a card's small payment for a minute."""

    small = hr.value_state(pa.bool_(), default=False)

    def process(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Handle a payment."""
        if self.small.value and row["amount"] >= LARGE:
            yield {"card": key, "amount": row["amount"]}
        self.small.clear()
        for time in self.timers:
            self.timers.delete(time)
        if row["amount"] <= SMALL:
            self.small.value = True
            self.timers.set(row["at"] + timedelta(minutes=1))

    def on_timer(self, key: int, time_ns: int) -> None:
        """A minute is over."""
        self.small.clear()


# One reader keeps the payments in order, and two subtasks share out the cards. Each card pays once
# a second, every fourth time little.
payments = hr.read.sequence(20_000, name="payments").select(
    card=pc.bit_wise_and(pc.field("sequence"), 3),
    amount=pc.if_else(pc.equal(pc.bit_wise_and(pc.field("sequence"), 12), 0), 1, 700),
    at=(pc.field("sequence") / 4 * 1_000_000).cast(pa.timestamp("us")),
)
frauds = (
    payments.with_watermark("at", delay="5s", name="times")
    .key_by("card")
    .process(
        Rules,
        schema=pa.schema([("card", pa.int64()), ("amount", pa.int64())]),
        name="rules",
        parallelism=2,
    )
)

job = hr.Job("fraud", frauds.write.collect(name="out"), parallelism=1)

if __name__ == "__main__":
    job.run()
