"""The drawing of a plan, in full."""

from __future__ import annotations

import pyarrow as pa

from headrace.engine.api.read import batches
from headrace.engine.plan.builder import build_plan
from headrace.engine.plan.mermaid import mermaid


def test_tasks_and_edges_are_drawn_in_order() -> None:
    stream = batches([pa.record_batch({"id": [1]})], name='"rows"')
    handle = (
        stream.rebalance()
        .map(lambda row: row, name="clean")
        .key_by("id")
        .stream.write.collect(name="out", parallelism=1)
    )
    plan = build_plan("job", [handle.node], parallelism=2, max_parallelism=8)
    assert mermaid(plan) == (
        'flowchart LR\n    t0(["#quot;rows#quot; x2"])\n    t1["clean x2"]\n    t2(["out'
        ' x1"])\n    t0 -->|rebalance| t1\n    t1 -->|hash| t2'
    )
