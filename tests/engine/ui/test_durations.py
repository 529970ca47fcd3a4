"""Durations of checkpoints as a histogram."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as changed

from headrace.engine.ui.durations import Durations
from tests.engine.cli.looks import CHECKPOINT, COMPLETE, status_of


def test_each_checkpoint_is_counted_once_and_buckets_include_their_bound() -> None:
    durations = Durations()
    for _ in range(3):
        durations.take(status_of(notices=(COMPLETE,)))
    later = [
        replace(COMPLETE, checkpoint=changed(CHECKPOINT, checkpoint=8 + n, duration_ns=ns))
        for n, ns in enumerate((1_000_000, 1_000_001, 1000 * 10**9))
    ]
    durations.take(status_of(notices=(COMPLETE, *later)))
    counted, sum_s = durations.histogram()
    buckets = dict(counted)
    assert (buckets["0.001"], buckets["0.0025"], buckets["0.05"]) == (1, 2, 3)
    assert (buckets["300.0"], buckets["+Inf"]) == (3, 4)
    assert round(sum_s, 3) == 1000.04
