from headrace.channels.credit import Debloat, Window

SECOND = 1_000_000_000
DEBLOAT = Debloat(target_ns=SECOND, floor_bytes=100)


def drain(window: Window, *, bytes_per_s: int, times: int, waiting: bool = True) -> None:
    for turn in range(times):
        window.drained(bytes_per_s // 10, turn * SECOND // 10, waiting=waiting)


def test_without_debloating_the_window_stays_at_the_ceiling() -> None:
    window = Window(10_000, None)
    drain(window, bytes_per_s=10, times=50)
    assert window.size_bytes == 10_000


def test_the_first_window_is_a_few_floors() -> None:
    assert Window(10_000, DEBLOAT).size_bytes == 400
    assert Window(150, DEBLOAT).size_bytes == 150


def test_the_window_follows_the_drain_rate_times_the_target() -> None:
    window = Window(10_000, DEBLOAT)
    drain(window, bytes_per_s=2_000, times=50)
    assert window.size_bytes == 2_000


def test_a_slow_consumer_keeps_the_floor_and_a_fast_one_the_ceiling() -> None:
    slow, fast = Window(10_000, DEBLOAT), Window(10_000, DEBLOAT)
    drain(slow, bytes_per_s=10, times=50)
    drain(fast, bytes_per_s=1_000_000, times=50)
    assert (slow.size_bytes, fast.size_bytes) == (100, 10_000)


def test_a_window_that_runs_dry_doubles_up_to_the_ceiling() -> None:
    window = Window(10_000, DEBLOAT)
    drain(window, bytes_per_s=1_000, times=50)
    window.drained(100, 6 * SECOND, waiting=False)
    assert window.size_bytes == 2_000
    for _ in range(9):
        window.drained(100, 7 * SECOND, waiting=False)
    assert window.size_bytes == 10_000


def test_a_pause_without_records_says_nothing_about_the_rate() -> None:
    window = Window(10_000, DEBLOAT)
    drain(window, bytes_per_s=1_000, times=50)
    window.drained(100, 5 * SECOND, waiting=False)
    before = window.size_bytes
    window.drained(100, 500 * SECOND, waiting=True)
    assert window.size_bytes == before
