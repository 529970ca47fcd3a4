from __future__ import annotations

from headrace.engine.cli.rates import Meter, TaskRates, slowest
from headrace.engine.contract.messages import SubtaskNumbers

from .looks import PLAN, numbers_of, status_of

SECOND_NS = 1_000_000_000


def at(second: int) -> SubtaskNumbers:
    """A slow task after so many seconds: 100 rows in and 50 out each second, half of the time
    busy.
    """
    half_ns = second * SECOND_NS // 2
    return numbers_of(
        1,
        rows_in=100 * second,
        rows_out=50 * second,
        busy_ns=half_ns,
        idle_ns=half_ns,
        queued_bytes=7,
    )


def test_rates_are_taken_between_looks() -> None:
    meter = Meter(PLAN)
    for second in range(3):
        meter.look(status_of(at(second)), second * SECOND_NS)
    _, slow = meter.rates()
    assert (slow.in_per_s, slow.out_per_s) == (100, 50)
    assert (slow.busy, slow.backpressured, slow.idle) == (0.5, 0, 0.5)
    assert (slow.queued_bytes, slow.rows) == (7, 200)


def test_old_looks_are_forgotten() -> None:
    meter = Meter(PLAN)
    for second in range(20):
        # It stood still for the first ten seconds.
        meter.look(status_of(at(max(0, second - 10))), second * SECOND_NS)
    assert meter.rates()[1].in_per_s == 100


def test_a_new_attempt_starts_from_zero() -> None:
    meter = Meter(PLAN)
    for second in range(3):
        meter.look(status_of(at(second + 10)), second * SECOND_NS)
    meter.look(status_of(epoch=2), 3 * SECOND_NS)
    meter.look(status_of(at(1), epoch=2), 4 * SECOND_NS)
    assert meter.rates()[1].in_per_s == 100


def test_one_look_has_no_rates() -> None:
    meter = Meter(PLAN)
    meter.look(status_of(at(5)), 0)
    assert [task.in_per_s for task in meter.rates()] == [0, 0]


def test_the_slowest_is_the_busiest_that_waits_for_nobody() -> None:
    waiting = TaskRates("waiting", 1, 0, 0, 0.55, 0.6, 0, 0)
    busy = TaskRates("busy", 1, 0, 0, 0.9, 0.05, 0, 0)
    lazy = TaskRates("lazy", 1, 0, 0, 0.2, 0, 0, 0)
    assert slowest([waiting, busy, lazy]) is busy
    assert slowest([waiting, lazy]) is None
