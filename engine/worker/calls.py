"""Where the time of a subtask's calls goes: totals by operator, and how long calls take.

A call of an operator is its share of one piece of work, without the operators behind it. Lengths
are counted in buckets that double, so that a quantile is right within a factor of two, whatever the
job does, and a heartbeat has room for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

#: The first bucket counts calls of up to a microsecond, each next one calls twice as long, the last
#: one all others: from half an hour on.
BUCKETS: Final = 32
_FIRST_NS: Final = 1_000


class Calls:
    """The calls of one subtask since its attempt began.

    Attributes:
        spent_ns: {operator's place in its chain: time in its calls}.
        counts: {operator's place: calls by bucket, up to the last bucket that has any}.
    """

    def __init__(self) -> None:
        self.spent_ns: dict[int, int] = {}
        self.counts: dict[int, list[int]] = {}

    def made(self, spent: Iterable[tuple[int, int]]) -> None:
        """A piece of work is done: (operator's place, its time in nanoseconds) of each."""
        for operator, spent_ns in spent:
            self.spent_ns[operator] = self.spent_ns.get(operator, 0) + spent_ns
            counts = self.counts.setdefault(operator, [])
            bucket = bucket_of(spent_ns)
            if bucket >= len(counts):
                counts += [0] * (bucket + 1 - len(counts))
            counts[bucket] += 1


def bucket_of(spent_ns: int) -> int:
    """Return the bucket of a call."""
    return min(BUCKETS - 1, (max(0, spent_ns - 1) // _FIRST_NS).bit_length())


def bound_ms(bucket: int) -> float:
    """Return the longest call of a bucket, in milliseconds."""
    return _FIRST_NS * (1 << bucket) / 1e6


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """Return a length that `share` of the calls do not exceed, in milliseconds; None: no call."""
    total = sum(counts)
    if not total:
        return None
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= share * total:
            return bound_ms(bucket)
    raise AssertionError("the shares of all buckets are everything")
