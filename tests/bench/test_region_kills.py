"""What a kill makes regions read again, from looks at a run."""

from __future__ import annotations

from typing import cast

from headrace.bench.region_kills import Look, _Watched
from headrace.engine.session.regions import RegionsSession


def watched(*rows: int) -> _Watched:
    """A run whose region 'a' has read so many records at each whole second."""
    made = _Watched(cast(RegionsSession, None))
    made._looks = [Look(float(second), {"a": count}) for second, count in enumerate(rows)]
    return made


def test_records_count_from_the_look_before_a_checkpoint() -> None:
    run = watched(0, 10, 20, 30, 40)
    assert run._since("a", 3.0, 4) == 10
    assert run._since("a", 2.5, 4) == 20
    assert run._since("a", 0.0, 3) == 30


def test_records_of_an_attempt_before_do_not_count() -> None:
    assert watched(0, 50, 60, 5, 10)._since("a", 0.0, 4) == 5


def test_a_gap_is_the_longest_time_without_a_record() -> None:
    assert watched(0, 10, 10, 10, 20, 20)._gap_ms("a", 0) == 2000.0
    assert watched(0, 10, 10, 10, 20, 30)._gap_ms("a", 3) == 0.0
