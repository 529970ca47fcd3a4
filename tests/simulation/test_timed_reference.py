"""What windows and joins must tell, in cases small enough to be said by heart."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from headrace.engine.simulation.jobs.event_time import bucket_of, time_of, told_of
from headrace.engine.simulation.jobs.graphs import Kind
from headrace.engine.simulation.jobs.lives import TTL_NS
from headrace.engine.simulation.jobs.timed_reference import lives_of, pairs_of, windows_of
from headrace.engine.simulation.jobs.windows import DISTANCE_NS, GAP_NS, SLIDING, pair_of

RECORDS = Counter({(id, id % 2): 1 + id % 3 for id in range(40)})
FAR = next(i for i in range(10, 100) if time_of(i) - time_of(0) > SLIDING.size_ns)


def test_windows_tell_what_timers_tell() -> None:
    counts: Counter[tuple[int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    for (id, key), times in RECORDS.items():
        counts[bucket_of(id), key] += times
        totals[bucket_of(id), key] += id * times
    told = {(told_of(n, totals[at], at[0]), at[1]): 1 for at, n in counts.items()}
    assert windows_of(Kind.WINDOWS, RECORDS) == told
    assert windows_of(Kind.BUCKETS, RECORDS) == told


def test_a_record_is_in_as_many_windows_as_overlap() -> None:
    first = time_of(5) // SLIDING.every_ns * SLIDING.every_ns
    lasts = [first + SLIDING.size_ns - 1 - back * SLIDING.every_ns for back in range(3)]
    told = windows_of(Kind.SLIDING, Counter({(5, 1): 2}))
    assert told == {(told_of(2, 10, last), 1): 1 for last in lasts}


def test_a_session_ends_where_the_next_record_is_too_far() -> None:
    ids = sorted(range(200), key=time_of)
    pairs = pairwise(ids)
    before, near = next((a, b) for a, b in pairs if 0 < time_of(b) - time_of(a) < GAP_NS)
    told = windows_of(Kind.SESSIONS, Counter({(before, 1): 1, (near, 1): 1, (199, 1): 1}))
    assert time_of(199) - time_of(near) > GAP_NS
    assert told == {
        (told_of(2, before + near, time_of(near) + GAP_NS - 1), 1): 1,
        (told_of(1, 199, time_of(199) + GAP_NS - 1), 1): 1,
    }


def test_a_join_tells_every_pair_and_who_met_none() -> None:
    assert time_of(FAR) - time_of(0) > DISTANCE_NS > abs(time_of(1) - time_of(0))
    told = pairs_of(Kind.JOIN, Counter({(0, 1): 2, (FAR, 1): 1}), Counter({(1, 1): 3, (0, 2): 1}))
    assert told == {
        (pair_of(0, 1), 1): 6,
        (pair_of(FAR, -1), 1): 1,
        (pair_of(-1, 0), 2): 1,
    }


def test_a_join_of_windows_tells_a_pair_for_each_window_that_both_are_in() -> None:
    left, right = Counter({(0, 1): 1, (FAR, 1): 1}), Counter({(1, 1): 1})
    assert time_of(0) // SLIDING.every_ns == time_of(1) // SLIDING.every_ns
    told = pairs_of(Kind.WINDOW_JOIN, left, right)
    assert told == {(pair_of(0, 1), 1): 3, (pair_of(FAR, -1), 1): 3}


def test_a_join_of_sessions_tells_pairs_that_records_between_them_bring_together() -> None:
    ids = sorted(range(100), key=time_of)
    times = [time_of(id) for id in ids]
    at = next(
        i
        for i in range(len(ids))
        if times[i + 2] - times[i] > GAP_NS
        and times[i + 1] - times[i] <= GAP_NS >= times[i + 2] - times[i + 1]
    )
    first, between, last = ids[at : at + 3]
    far = max(ids)
    left, right = Counter({(first, 1): 2, (far, 1): 1}), Counter({(last, 1): 1, (far, 2): 1})
    alone = {
        (pair_of(first, -1), 1): 2,
        (pair_of(far, -1), 1): 1,
        (pair_of(-1, last), 1): 1,
        (pair_of(-1, far), 2): 1,
    }
    assert pairs_of(Kind.SESSION_JOIN, left, right) == alone
    met = {(pair_of(first, last), 1): 2, (pair_of(first, between), 1): 2}
    found = pairs_of(Kind.SESSION_JOIN, left, right + Counter({(between, 1): 1}))
    assert found == met | {(pair_of(far, -1), 1): 1, (pair_of(-1, far), 2): 1}


def test_a_life_ends_where_the_next_record_is_a_ttl_later() -> None:
    ids = sorted(range(100), key=time_of)
    apart = ((a, b) for a in ids[9:] for b in ids if time_of(b) - time_of(a) == TTL_NS)
    second, third = next(apart)
    first = ids[ids.index(second) - 1]
    assert 0 < time_of(second) - time_of(first) < TTL_NS
    told = lives_of(Counter({(first, 1): 2, (second, 1): 1, (third, 1): 1, (third, 2): 1}))
    at = time_of(first)
    assert told == {
        (told_of(1, first, at), 1): 1,
        (told_of(2, 2 * first, at), 1): 1,
        (told_of(3, 2 * first + second, time_of(second)), 1): 1,
        (told_of(1, third, time_of(third)), 1): 1,
        (told_of(1, third, time_of(third)), 2): 1,
    }
