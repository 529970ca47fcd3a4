"""A loop: the connected components of a graph whose edges come as a stream.

Every node takes the lowest label it has heard of, its own number at first, and tells its
neighbours. What it tells goes round the loop; what it is called at the end is its component.

headrace run examples/connected_components.py --runner threads
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

NODES = 1_000
#: An edge between `node` and `other`; or `node` hears a label; or `node` has taken a label.
MESSAGE = pa.schema(
    [("what", pa.string()), ("node", pa.int64()), ("other", pa.int64()), ("label", pa.int64())]
)


def message(what: str, node: int, *, other: int = -1, label: int = -1) -> dict[str, Any]:
    """Return a record of the loop."""
    return {"what": what, "node": node, "other": other, "label": label}


def both_ways(row: dict[str, int]) -> list[dict[str, Any]]:
    """Tell both ends of an edge; a number makes the edge, within one of ten components."""
    node = row["key"]
    other = (node * 7 + row["sequence"] * 10) % NODES // 10 * 10 + node % 10
    return [message("edge", node, other=other), message("edge", other, other=node)]


class Node(hr.StatefulProcessor):
    """Knows its neighbours and the lowest label so far."""

    label = hr.value_state(pa.int64())
    neighbours = hr.list_state(pa.int64())

    def process(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Meet a neighbour, or hear a label."""
        known = self.label.value
        lowest = key if known is None else known
        if row["what"] == "edge":
            self.neighbours.append(row["other"])
            yield message("hear", row["other"], label=lowest)
        if row["label"] >= 0 and row["label"] < lowest:
            lowest = row["label"]
            for neighbour in self.neighbours:
                yield message("hear", neighbour, label=lowest)
        if lowest != known:
            self.label.value = lowest
            yield message("take", key, label=lowest)


def spread(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
    """A round: nodes take labels and tell their neighbours, who hear them in the next round."""
    told = loop.key_by("node").process(Node, schema=MESSAGE, name="nodes")
    return told.filter(pc.field("what") == "hear"), told.filter(pc.field("what") == "take")


edges = hr.read.sequence(2_000, keys=NODES, name="numbers").flat_map(both_ways, MESSAGE)
taken = edges.iterate(spread, name="rounds")
components = taken.key_by("node").aggregate(
    component=hr.min("label"), emit="final", name="components"
)

job = hr.Job("components", components.write.collect(name="out"), parallelism=2)

if __name__ == "__main__":
    job.run()
