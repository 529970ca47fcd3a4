"""State of one's own per key: counts each visitor's visits and tells of every hundredth.

headrace run examples/visits.py --runner threads
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import headrace as hr


class Milestones(hr.StatefulProcessor):
    """Remembers how often a visitor came."""

    visits = hr.value_state(pa.int64(), default=0)

    def process(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Handle one visit."""
        self.visits.value += 1
        if self.visits.value % 100 == 0:
            yield {"visitor": key, "visits": self.visits.value}


REACHED = pa.schema([("visitor", pa.int64()), ("visits", pa.int64())])

visits = hr.read.sequence(2_000, keys=4, name="visits")
reached = visits.key_by("key").process(Milestones, schema=REACHED, name="milestones")

job = hr.Job("visits", reached.write.collect(name="out"), parallelism=2)

if __name__ == "__main__":
    job.run()
