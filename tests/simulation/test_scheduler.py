"""Virtual time runs in order, and a trace tells two runs apart."""

from __future__ import annotations

from headrace.engine.simulation.scheduler import Scheduler


def test_actions_run_in_the_order_of_their_time_then_of_their_scheduling() -> None:
    scheduler, ran = Scheduler(0), list[str]()
    scheduler.after(20, lambda: ran.append("late"))
    scheduler.after(10, lambda: ran.append("first"))
    scheduler.after(10, lambda: ran.append("second"))
    while scheduler.step():
        pass
    assert ran == ["first", "second", "late"]
    assert (scheduler.now_ns, scheduler.steps) == (20, 3)


def test_what_is_due_in_the_past_happens_now() -> None:
    scheduler = Scheduler(0)
    scheduler.after(10, lambda: scheduler.at(3, lambda: None))
    while scheduler.step():
        pass
    assert scheduler.now_ns == 10


def test_delays_lie_between_their_bounds_and_mostly_near_the_lower() -> None:
    scheduler = Scheduler(0)
    delays = [scheduler.delay_ns(10, 1010) for _ in range(500)]
    assert min(delays) >= 10
    assert max(delays) < 1010
    assert sorted(delays)[250] < 300


def test_the_trace_hash_depends_on_every_line_and_time() -> None:
    def hash_of(delay_ns: int, line: str) -> str:
        scheduler = Scheduler(0)
        scheduler.after(delay_ns, lambda: scheduler.trace(line))
        scheduler.step()
        return scheduler.trace_hash

    assert hash_of(1, "a") == hash_of(1, "a")
    assert len({hash_of(1, "a"), hash_of(2, "a"), hash_of(1, "b")}) == 3


def test_a_shown_trace_hashes_the_same() -> None:
    lines: list[str] = []
    shown, silent = Scheduler(0, show=lines.append), Scheduler(0)
    for scheduler in (shown, silent):
        scheduler.trace("something")
    assert shown.trace_hash == silent.trace_hash
    assert [line.split()[-1] for line in lines] == ["something"]
