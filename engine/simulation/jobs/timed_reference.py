"""The expected output of windows, joins and lives of a random job: by definition, of all records at
once.

Records are (id, key) with multiplicity, and so is the output; times follow from ids.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from ...operators.windows import TimeWindow
from .event_time import time_of, told_of
from .graphs import Kind
from .lives import TTL_NS
from .windows import DISTANCE_NS, GAP_NS, SLIDING, TUMBLING, pair_of

#: {(id, key): how often}.
Records = Counter[tuple[int, int]]
#: [time, id, how often], of one key.
_OfKey = list[tuple[int, int, int]]


def windows_of(kind: Kind, records: Records) -> Records:
    """A record for each window with the count of ids and their sum."""
    told: Records = Counter()
    for key, found in _by_key(records).items():
        held = _sessions(found) if kind is Kind.SESSIONS else _windows(kind, found)
        for last, within in held:
            count = sum(times for _, _, times in within)
            total = sum(id * times for _, id, times in within)
            told[told_of(count, total, last), key] += 1
    return told


def pairs_of(kind: Kind, left: Records, right: Records) -> Records:
    """A record for each pair, or record without partner; of windows, a record per window."""
    told: Records = Counter()
    of_left, of_right = _by_key(left), _by_key(right)
    for key in of_left.keys() | of_right.keys():
        one, other = of_left.get(key, []), of_right.get(key, [])
        for id, times in _pairs(kind, one, other):
            told[id, key] += times
    return told


def lives_of(records: Records) -> Records:
    """A record per record, with the key's count and sum since the last gap."""
    told: Records = Counter()
    for key, found in _by_key(records).items():
        n = total = 0
        last_ns: int | None = None
        for time_ns, id, times in sorted(found):
            if last_ns is not None and time_ns - last_ns >= TTL_NS:
                n = total = 0
            last_ns = time_ns
            for _ in range(times):
                n, total = n + 1, total + id
                told[told_of(n, total, time_ns), key] += 1
    return told


def _pairs(kind: Kind, left: _OfKey, right: _OfKey) -> Iterator[tuple[int, int]]:
    """Pairs of a key, with multiplicity."""
    if kind is Kind.JOIN:
        yield from _close(left, right)
        return
    groups = _both_in_sessions if kind is Kind.SESSION_JOIN else _both_in_windows
    for one, other in groups(left, right):
        yield from _met(one, other)


def _windows(kind: Kind, records: _OfKey) -> Iterator[tuple[int, _OfKey]]:
    """The last nanosecond of each window, and the window's records."""
    window = SLIDING if kind is Kind.SLIDING else TUMBLING
    for start, within in _by_window(window, records).items():
        yield start + window.size_ns - 1, within


def _sessions(records: _OfKey) -> Iterator[tuple[int, _OfKey]]:
    session: _OfKey = []
    for record in sorted(records):
        if session and record[0] - session[-1][0] > GAP_NS:
            yield session[-1][0] + GAP_NS - 1, session
            session = []
        session.append(record)
    if session:
        yield session[-1][0] + GAP_NS - 1, session


def _close(left: _OfKey, right: _OfKey) -> Iterator[tuple[int, int]]:
    met: set[int] = set()
    for time, id, times in left:
        others = [other for other in right if abs(time - other[0]) <= DISTANCE_NS]
        for _, other, others_times in others:
            yield pair_of(id, other), times * others_times
        if not others:
            yield pair_of(id, -1), times
        met |= {other for _, other, _ in others}
    for _, id, times in right:
        if id not in met:
            yield pair_of(-1, id), times


def _both_in_windows(left: _OfKey, right: _OfKey) -> Iterator[tuple[_OfKey, _OfKey]]:
    of_left, of_right = _by_window(SLIDING, left), _by_window(SLIDING, right)
    for start in of_left.keys() | of_right.keys():
        yield of_left.get(start, []), of_right.get(start, [])


def _both_in_sessions(left: _OfKey, right: _OfKey) -> Iterator[tuple[_OfKey, _OfKey]]:
    """Sessions of both sides together, cut into the records of either side."""
    for _, session in _sessions([*left, *right]):
        first, last = session[0][0], session[-1][0]
        one, other = ([r for r in side if first <= r[0] <= last] for side in (left, right))
        yield one, other


def _met(left: _OfKey, right: _OfKey) -> Iterator[tuple[int, int]]:
    """All pairs of two sides, or the records of the only side."""
    for _, id, times in left:
        for _, partner, others_times in right:
            yield pair_of(id, partner), times * others_times
        if not right:
            yield pair_of(id, -1), times
    for _, id, times in right if not left else ():
        yield pair_of(-1, id), times


def _by_key(records: Records) -> dict[int, _OfKey]:
    found: defaultdict[int, _OfKey] = defaultdict(list)
    for (id, key), times in records.items():
        found[key].append((int(time_of(id)), id, times))
    return found


def _by_window(window: TimeWindow, records: Iterable[tuple[int, int, int]]) -> dict[int, _OfKey]:
    """The records of each window, by start."""
    found: defaultdict[int, _OfKey] = defaultdict(list)
    for record in records:
        start = record[0] // window.every_ns * window.every_ns
        while record[0] - start < window.size_ns:
            found[start].append(record)
            start -= window.every_ns
    return found
