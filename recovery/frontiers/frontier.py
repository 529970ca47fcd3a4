"""Frontiers: downward-closed sets of logical times.

A time is a sequence number on an edge, or a *structured* time: an epoch, or an epoch with loop
counters, in lexicographic order. Times of one edge are ordered; times of two edges are not, nor is
a sequence number comparable with a structured time. So a frontier is one bound an edge and one
bound of structured times, and holds the times before its bounds.

A bound is a tuple. Before `(4,)` lie all times whose epoch is at most 3, however many loop counters
the domain has; before `(3, 2)` lie also `(3, 0)` and `(3, 1)`. Entering a loop thus changes no
bound. Bounds are kept without trailing zeros, so equal sets are equal values.

Product orders with several minimal bounds (antichains) are left out: Naiad's own fault tolerance
orders times lexicographically, too.

Source: Isard and Abadi, "Falkirk Wheel: Rollback Recovery for Dataflow Systems", 3.1 and 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

#: An edge's name, or None: structured times.
Chain = str | None
#: Exclusive; without trailing zeros.
Bound = tuple[float, ...]
Time = tuple[int, ...]

NO_TIME: Bound = ()
ALL_TIMES: Bound = (inf,)


@dataclass(frozen=True, slots=True)
class Frontier:
    """A downward-closed set of times; `<=` is inclusion, `|` union, `&` intersection.

    Attributes:
        bounds: {edge, or None for structured times: bound}.
        rest: the bound of all other chains: nothing or everything.
    """

    bounds: Mapping[Chain, Bound] = field(default_factory=dict)
    rest: Bound = NO_TIME

    def __post_init__(self) -> None:
        bounds = {chain: canonical(bound) for chain, bound in self.bounds.items()}
        kept = {chain: bound for chain, bound in bounds.items() if bound != self.rest}
        object.__setattr__(self, "bounds", kept)

    @staticmethod
    def sequences(counts: Mapping[str, int]) -> Frontier:
        """Return the first `n` messages of each edge."""
        return Frontier({edge: (count,) for edge, count in counts.items()})

    @staticmethod
    def before(*time: float) -> Frontier:
        """Return all structured times before `time`."""
        return Frontier({None: time})

    @staticmethod
    def through(*time: int) -> Frontier:
        """Return `time` and all structured times before."""
        return Frontier({None: (*time[:-1], time[-1] + 1)})

    @staticmethod
    def closure(times: Iterable[tuple[Chain, Time]]) -> Frontier:
        """Return the smallest frontier with these times, each as (edge or None, time)."""
        bounds: dict[Chain, Bound] = {}
        for chain, time in times:
            after = canonical((*time[:-1], time[-1] + 1))
            bounds[chain] = max(after, bounds.get(chain, NO_TIME))
        return Frontier(bounds)

    def bound(self, chain: Chain) -> Bound:
        """Return the bound of an edge's sequence numbers, or of structured times (None)."""
        return self.bounds.get(chain, self.rest)

    def contains(self, *time: int, edge: Chain = None) -> bool:
        """Tell whether a structured time, or a sequence number of `edge`, is in the frontier."""
        return canonical(time) < self.bound(edge)

    def covers(self, other: Frontier, edge: Chain) -> bool:
        """Tell whether the frontier holds the times of `other` that messages on `edge` may bear."""
        if self is EVERYTHING or other is NOTHING:
            return True
        return other.bound(edge) <= self.bound(edge) and other.bound(None) <= self.bound(None)

    def on(self, edge: Chain) -> Frontier:
        """Return the times that messages on `edge` may bear."""
        return Frontier({chain: self.bound(chain) for chain in (edge, None)})

    def limited(self, other: Frontier, edge: Chain) -> Frontier:
        """Return the frontier without the times that messages on `edge` may bear beyond `other`."""
        own = {chain: min(self.bound(chain), other.bound(chain)) for chain in (edge, None)}
        return Frontier({**self.bounds, **own}, self.rest)

    def __hash__(self) -> int:
        return hash((frozenset(self.bounds.items()), self.rest))

    def __le__(self, other: Frontier) -> bool:
        chains = self.bounds.keys() | other.bounds.keys()
        rest = self.rest <= other.rest
        return rest and all(self.bound(chain) <= other.bound(chain) for chain in chains)

    def __lt__(self, other: Frontier) -> bool:
        return self <= other and self != other

    def __or__(self, other: Frontier) -> Frontier:
        chains = self.bounds.keys() | other.bounds.keys()
        bounds = {chain: max(self.bound(chain), other.bound(chain)) for chain in chains}
        return Frontier(bounds, max(self.rest, other.rest))

    def __and__(self, other: Frontier) -> Frontier:
        chains = self.bounds.keys() | other.bounds.keys()
        bounds = {chain: min(self.bound(chain), other.bound(chain)) for chain in chains}
        return Frontier(bounds, min(self.rest, other.rest))

    def __str__(self) -> str:
        if not self.bounds:
            return "everything" if self.rest else "nothing"
        return ", ".join(_shown(chain, bound) for chain, bound in self.bounds.items())


def canonical(bound: Bound) -> Bound:
    """Return the bound without trailing zeros; `(3, inf)` is `(4,)`."""
    if inf in bound:
        at = bound.index(inf)
        bound = (*bound[: at - 1], bound[at - 1] + 1) if at else ALL_TIMES
    while bound and not bound[-1]:
        bound = bound[:-1]
    if bound and min(bound) < 0:
        raise ValueError(f"a time has no negative part: {bound}")
    return bound


def _shown(chain: Chain, bound: Bound) -> str:
    if chain is None:
        return "no structured time" if not bound else f"times before {_plain(bound)}"
    if bound == ALL_TIMES:
        return f"all of {chain}"
    return f"{bound[0] if bound else 0} of {chain}"


def _plain(bound: Bound) -> str:
    return str(bound[0]) if len(bound) == 1 else str(bound)


NOTHING = Frontier()
#: The paper's frontier of a processor that has not failed; see `processors.present`.
EVERYTHING = Frontier(rest=ALL_TIMES)
