"""Rules that change while the job runs: every subtask is told the limits, and orders above them are
let through.

headrace run examples/limits.py --runner threads
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import headrace as hr


class Limits(hr.BroadcastProcessor):
    """Remembers the newest limit of each customer, and how much each has ordered."""

    limits = hr.broadcast_state(pa.int64(), pa.int64())
    ordered = hr.value_state(pa.int64(), default=0)

    def process_broadcast(self, row: dict[str, Any]) -> None:
        """A limit is a hundred for each time a customer is named."""
        self.limits[row["key"]] = self.limits.get(row["key"], 0) + 100

    def process(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An order of one; what is within the limit passes."""
        if self.ordered.value < self.limits.get(key, 0):
            self.ordered.value += 1
            yield {"customer": key, "order": row["sequence"]}


PASSED = pa.schema([("customer", pa.int64()), ("order", pa.int64())])

limits = hr.read.sequence(20, keys=4, name="limits", parallelism=1).broadcast()
orders = hr.read.sequence(5_000, keys=4, name="orders", rate=5_000)
passed = orders.key_by("key").connect(limits, Limits, schema=PASSED, name="within-limits")

job = hr.Job("limits", passed.write.collect(name="out"), parallelism=2)

if __name__ == "__main__":
    job.run()
