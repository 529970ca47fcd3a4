from __future__ import annotations

import pyarrow as pa

from headrace.engine.operators.loop_head import LoopHead


def test_every_batch_of_every_port_is_passed_on() -> None:
    head = LoopHead(operator="rounds")
    batch = pa.record_batch({"n": [1, 2]})
    assert [list(head.process(batch, port)) for port in (0, 1)] == [[batch], [batch]]
