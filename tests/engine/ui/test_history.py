"""Points over time, and how they are thinned."""

from __future__ import annotations

from itertools import pairwise

from headrace.engine.ui.history import History, point_of

from .made import START_MS, look, point


def test_a_point_holds_what_the_time_lines_draw() -> None:
    made = point_of(look(3))
    assert (made.at_ms, made.in_per_s, made.out_per_s) == (START_MS + 3000, 1000.0, 1000.0)
    assert made.queued_bytes == 3 << 20
    assert made.watermark_lag_s == 3.0, "of the task that lags most"
    assert (made.busy, made.backpressured, made.severity) == ([90, 90], [5, 5], "wrong")


def test_a_quarter_of_an_hour_is_kept_by_the_second_and_hours_by_the_half_minute() -> None:
    history = History(map(point, range(4 * 3600)))
    times = [each.at_ms for each in history.points()]
    steps = {after - before for before, after in pairwise(times)}
    assert times[-900:] == [START_MS + s * 1000 for s in range(4 * 3600 - 900, 4 * 3600)]
    assert max(steps) == 30_000
    assert len(times) < 900 + 4 * 120
    assert times[0] == START_MS


def test_only_the_points_after_a_time_are_told() -> None:
    history = History(map(point, range(2000)))
    since = START_MS + 1_990_000
    assert [p.at_ms - since for p in history.points(since)] == list(range(1000, 10_000, 1000))
    assert history.points(START_MS + 10**9) == []
    assert len(history.points(START_MS + 60_000)) < len(history.points())


def test_points_of_a_clock_that_was_set_back_are_left_out() -> None:
    history = History([point(5), point(3), point(5), point(6)])
    assert [each.at_ms - START_MS for each in history.points()] == [5000, 6000]


def test_a_recording_keeps_two_minutes_in_full_and_a_fifth_of_the_rest() -> None:
    kept = History(map(point, range(900))).thinned()
    assert [p.at_ms for p in kept[-120:]] == [START_MS + s * 1000 for s in range(780, 900)]
    assert len(kept) < 120 + 780 // 5 + 2
    assert History().thinned() == []
