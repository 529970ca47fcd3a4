"""The clock only grows, and stands near the wall clock."""

from __future__ import annotations

import time

import pytest

from headrace.engine.contract.clock import now_ns


def test_it_never_goes_back() -> None:
    readings = [now_ns() for _ in range(1000)]
    assert readings == sorted(readings)


def test_it_tells_nanoseconds_since_1970() -> None:
    assert abs(now_ns() - time.time_ns()) < 3600 * 10**9


def test_a_jump_of_the_wall_clock_does_not_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before_ns = now_ns()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= now_ns() - before_ns < 60 * 10**9
