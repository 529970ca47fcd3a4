"""Credit: windows follow what their consumer needs, whatever the rhythm, within the budget."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.credit import Budget, Credit, Debloat, Window

MS = 1_000_000
SECOND = 1000 * MS
DEBLOAT = Debloat(target_ns=SECOND, floor_bytes=100)
CEILING = 1 << 20


def drain(window: Window, *sizes: int, every_ms: int, left: int = 1 << 30, times: int = 50) -> None:
    """Drain pieces of these sizes in turn, one each `every_ms`, with `left` bytes behind them."""
    now_ns = 0
    for turn in range(times):
        now_ns += every_ms * MS
        size_bytes = sizes[turn % len(sizes)]
        window.drained(size_bytes, now_ns, left_bytes=left, starved=False)


def starve(window: Window, times: int = 1) -> None:
    for _ in range(times):
        window.drained(1, 0, left_bytes=0, starved=True)


def test_without_debloating_the_window_stays_at_the_ceiling() -> None:
    window = Window(CEILING, None)
    drain(window, 1, every_ms=100)
    assert window.size_bytes == CEILING


def test_the_first_window_is_a_few_floors() -> None:
    assert Window(CEILING, DEBLOAT).size_bytes == 400
    assert Window(150, DEBLOAT).size_bytes == 150


def test_a_consumer_that_starves_for_credit_gets_twice_as_much_up_to_the_ceiling() -> None:
    window = Window(1500, DEBLOAT)
    starve(window)
    assert window.size_bytes == 800
    starve(window, times=5)
    assert window.size_bytes == 1500


def test_of_what_waits_all_the_time_an_eighth_goes_turn_by_turn() -> None:
    window = Window(CEILING, DEBLOAT)
    starve(window, times=5)
    before = window.size_bytes
    window.drained(before - 1, 0, left_bytes=900, starved=False)
    assert window.size_bytes == before, "a turn is as long as the window"
    window.drained(1, 0, left_bytes=500, starved=False)
    assert window.size_bytes == before - 62
    window.drained(before, 0, left_bytes=0, starved=False)
    assert window.size_bytes == before - 62, "nothing waited at the end of this turn"


def test_no_window_is_larger_than_what_is_drained_in_the_target_time() -> None:
    window = Window(CEILING, DEBLOAT)
    starve(window, times=12)
    drain(window, 200, every_ms=100, left=1)
    assert window.size_bytes == 2000


def test_pieces_that_come_two_at_a_time_count_as_bytes_over_time() -> None:
    """Two quick pieces a second: the quick one tells nothing by itself."""
    window = Window(CEILING << 10, DEBLOAT)
    starve(window, times=12)
    now_ns = 0
    for _ in range(50):
        for passed_ms in (10, 990):
            now_ns += passed_ms * MS
            window.drained(64 << 10, now_ns, left_bytes=1, starved=False)
    assert 64 << 10 <= window.size_bytes <= 136 << 10


def test_a_rate_fades_when_the_consumer_slows_down() -> None:
    window = Window(CEILING, DEBLOAT)
    starve(window, times=12)
    drain(window, 1000, every_ms=10, left=1)
    assert window.size_bytes > 50_000
    now_ns = SECOND
    for _ in range(20):
        now_ns += SECOND
        window.drained(1000, now_ns, left_bytes=1, starved=False)
    assert window.size_bytes < 1500


def test_a_pause_without_records_says_nothing_about_the_rate() -> None:
    window = Window(CEILING, DEBLOAT)
    starve(window, times=12)
    drain(window, 200, every_ms=100, left=1)
    before = window.size_bytes
    window.drained(200, 5100 * MS, left_bytes=0, starved=False)
    window.begun(500 * SECOND)
    window.drained(200, 500 * SECOND + 100 * MS, left_bytes=1, starved=False)
    assert before * 0.9 <= window.size_bytes <= before


def test_a_call_that_is_worth_more_gets_more_than_the_target_time() -> None:
    window = Window(CEILING, DEBLOAT)
    drain(window, 10, every_ms=1000, left=1)
    assert window.size_bytes == 100
    for _ in range(8):
        window.drained(10, 60 * SECOND, left_bytes=0, starved=True, least_bytes=3000)
    assert window.size_bytes == 3000


def test_windows_of_a_worker_share_its_budget() -> None:
    budget = Budget(2000, members=2)
    hot, cold = Window(CEILING, DEBLOAT, budget), Window(CEILING, DEBLOAT, budget)
    assert budget.held_bytes == 800
    for _ in range(9):
        starve(hot)
        hot.holds(0)
    assert hot.size_bytes == 1600, "all but what the other holds"
    starve(cold)
    assert cold.size_bytes == 400, "nothing is left"
    hot.drained(1600, 0, left_bytes=1600, starved=False)
    hot.holds(1600)
    starve(cold)
    assert cold.size_bytes == 400, "what was granted is still out"
    hot.holds(0)
    starve(cold)
    assert cold.size_bytes == 600


def test_a_queue_that_grows_takes_of_the_budget() -> None:
    budget = Budget(2000, members=2)
    one, other = Window(CEILING, DEBLOAT, budget), Window(CEILING, DEBLOAT, budget)
    for _ in range(9):
        starve(one)
        starve(other)
    assert one.size_bytes + other.size_bytes == budget.held_bytes == 2000


def test_many_members_share_a_small_budget() -> None:
    budget = Budget(1000, members=50)
    windows = [Window(CEILING, DEBLOAT, budget) for _ in range(50)]
    assert {window.size_bytes for window in windows} == {20}
    assert budget.held_bytes == 1000
    fixed = Window(CEILING, None, Budget(1000, members=10))
    assert fixed.size_bytes == 100


def test_a_producer_has_no_credit_before_its_consumer_opens_the_channel() -> None:
    credit = Credit(Window(80, None))
    assert credit.limit_bytes == 0
    assert credit.extended() is None, "records of a checkpoint come first"
    assert credit.opened() == 80


def test_credit_comes_back_half_a_window_at_a_time() -> None:
    credit = Credit(Window(80, None))
    credit.opened()
    credit.received_bytes = 80
    assert [credit.consumed(10) for _ in range(8)] == [None, None, None, 120, None, None, None, 160]


def test_credit_is_spent_when_the_producer_could_send_nothing_before_the_last_grant() -> None:
    credit = Credit(Window(80, None))
    credit.opened()
    credit.received_bytes = 40
    credit.consumed(40)
    assert not credit.is_spent, "forty were left when the grant was made"
    credit.received_bytes = 120
    assert credit.is_spent
    credit.consumed(40)
    credit.received_bytes = 130
    assert credit.is_spent, "the producer waited for this grant"


steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 400), st.integers(0, 50), st.booleans()),
    max_size=60,
)


@given(steps, st.integers(1, 5000))
def test_what_windows_hold_stays_within_the_budget(
    drawn: list[tuple[int, int, int, bool]], budget_bytes: int
) -> None:
    """Producers that use all credit at once, consumers of any rhythm."""
    budget = Budget(budget_bytes, members=4)
    credits = [Credit(Window(1000, DEBLOAT, budget)) for _ in range(4)]
    for credit in credits:
        credit.opened()
    now_ns = 0
    for number, size_bytes, passed_ms, starved in drawn:
        credit = credits[number]
        credit.received_bytes = credit.limit_bytes
        now_ns += passed_ms * MS
        size_bytes = min(size_bytes, credit.received_bytes - credit.consumed_bytes)
        credit.window.begun(now_ns)
        credit.window.drained(size_bytes, now_ns, left_bytes=0, starved=starved)
        credit.consumed(size_bytes)
        granted = sum(c.limit_bytes - c.consumed_bytes for c in credits)
        assert granted <= max(budget_bytes, 4)
        assert budget.held_bytes <= max(budget_bytes, 4)
