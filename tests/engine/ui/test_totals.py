"""Totals over all attempts of a job."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as changed

from headrace.engine.ui.totals import COUNTERS, Histogram, Totals
from tests.engine.cli.looks import CHECKPOINT, COMPLETE, numbers_of, status_of

RECORDS_IN = [name for name, *_ in COUNTERS].index("records_in")


def records_in(totals: Totals) -> float:
    return totals.counters()[1, 0][RECORDS_IN]


def test_counters_survive_attempts() -> None:
    totals = Totals()
    totals.take(status_of(numbers_of(1, rows_in=100)))
    totals.take(status_of(numbers_of(1, rows_in=150)))
    totals.take(status_of(epoch=2))
    assert records_in(totals) == 150, "between two attempts nobody tells numbers"
    totals.take(status_of(numbers_of(1, rows_in=30), epoch=2))
    assert records_in(totals) == 180
    totals.take(status_of(numbers_of(1, rows_in=40), epoch=5))
    assert records_in(totals) == 220


def test_an_attempt_that_tells_no_numbers_for_a_moment_loses_none() -> None:
    totals = Totals()
    totals.take(status_of(numbers_of(1, rows_in=100)))
    totals.take(status_of())
    assert records_in(totals) == 100


def test_each_checkpoint_is_counted_once() -> None:
    totals = Totals()
    for _ in range(3):
        totals.take(status_of(notices=(COMPLETE,)))
    assert sum(totals.durations.counts) == 1
    later = replace(COMPLETE, checkpoint=changed(CHECKPOINT, checkpoint=8, duration_ns=2 * 10**9))
    totals.take(status_of(notices=(COMPLETE, later)))
    assert sum(totals.durations.counts) == 2
    assert totals.durations.sum_s == 2.038


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0005, 0.001, 0.0011, 1000.0):
        histogram.observe(seconds)
    buckets = dict(histogram.buckets())
    assert (buckets["0.001"], buckets["0.0025"], buckets["300.0"]) == (2, 3, 3)
    assert buckets["+Inf"] == 4
