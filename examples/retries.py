"""A loop: calls that fail go round again, and are given up after some attempts.

headrace run examples/retries.py --runner threads
"""

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

ORDERS = 2_000
ATTEMPTS_MAX = 4
#: An order on its way: how often its price was asked for, the price (0: unknown), and the last
#: failure.
ASKED = pa.schema(
    [("order", pa.int64()), ("attempts", pa.int64()), ("price", pa.int64()), ("error", pa.string())]
)
PRICED = pc.field("price") > 0
GIVEN_UP = ~PRICED & (pc.field("attempts") >= ATTEMPTS_MAX)


def price(order: int, attempt: int) -> int:
    """Stand in for a service with three kinds of orders: quickly, slowly and never priced."""
    if order % 20 == 0 or order % 3 >= attempt:
        raise ConnectionError(f"order {order} was refused at attempt {attempt}")
    return order + 1


async def ask(row: dict[str, Any]) -> dict[str, Any]:
    """Ask once more; a failure is an answer, too."""
    await asyncio.sleep(0.001)
    attempts = row["attempts"] + 1
    try:
        return row | {"attempts": attempts, "price": price(row["order"], attempts), "error": ""}
    except ConnectionError as failure:
        return row | {"attempts": attempts, "error": str(failure)}


def attempt(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
    """A round: what was neither priced nor given up goes round again."""
    asked = loop.key_by("order").map_async(ask, ASKED, capacity=64, name="ask")
    return asked.filter(~PRICED & ~GIVEN_UP, name="again"), asked.filter(PRICED | GIVEN_UP)


orders = hr.read.sequence(ORDERS, keys=None, name="orders").select(
    order=pc.field("key"),
    attempts=pc.scalar(0),
    price=pc.scalar(0),
    error=pc.scalar(""),
)
asked = orders.iterate(attempt, name="attempts")

job = hr.Job(
    "retries",
    asked.filter(PRICED).write.collect(name="priced"),
    asked.filter(GIVEN_UP).write.collect(name="dead-letters"),
    parallelism=2,
)

if __name__ == "__main__":
    job.run()
