"""Totals per customer over a stream of orders: expressions, and a keyed aggregate.

    headrace run examples/orders.py --runner threads

Prints one line per customer. Run it without `--runner` for embedded Spark.
"""

import pyarrow.compute as pc

import headrace as hr

orders = hr.read.sequence(200_000, keys=5, name="orders").select(
    customer=pc.field("key"), amount=pc.field("sequence")
)
large = orders.filter(pc.field("amount") > 100, name="large")
totals = large.key_by("customer").aggregate(
    amount=hr.sum("amount"), n=hr.count(), emit="final", name="totals"
)

job = hr.Job("orders", totals.write.collect(name="out"), parallelism=2)

if __name__ == "__main__":
    job.run()
