"""Samples are printed no more often than asked for."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.operators.inspect import InspectOperator


def test_samples_keep_their_distance(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0]
    operator = InspectOperator("", 10, operator="orders", clock=lambda: now[0])
    for time in range(0, 30, 4):
        now[0] = time
        batch = pa.record_batch({"t": [time, time]})
        assert list(operator.process(batch, 0)) == [batch]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "orders: record 0: {'t': 0}",
        "orders: record 6: {'t': 12}",
        "orders: record 12: {'t': 24}",
    ]
