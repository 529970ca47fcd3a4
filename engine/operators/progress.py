"""Event time inside a chain: how far it has come at each operator, and whom it concerns next.

A watermark goes from operator to operator like a record, but an operator that has more to emit for it keeps it until it is done; that may take
several calls, with a commit between any two. A generator takes no notice of watermarks from before it, except of the last one: at the end of
input all windows close.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.operators import EventTimeOperator, Operator, Polled
from .work import ChainTime

#: Passes a batch on to the operator at a position, and yields what comes out of the tail.
Feed = Callable[[int, pa.RecordBatch], Iterator[pa.RecordBatch]]


@runtime_checkable
class WatermarkGenerator(Operator, Protocol):
    """An operator that makes watermarks from the records it passes on."""

    @property
    def watermark_ns(self) -> int:
        """No record with a time up to this is expected behind what was passed on; MIN_WATERMARK before the first record."""
        ...

    @property
    def records(self) -> int:
        """How many records have come since it was opened."""
        ...


@runtime_checkable
class SplitGenerator(WatermarkGenerator, Protocol):
    """A generator that keeps the splits of its chain's source apart."""

    def opened(self, splits: Collection[str]) -> None:
        """These splits are open (see `ReadsSplits`) before the first poll, after `restore` if there is anything to restore."""
        ...

    def polled(
        self, split: str, splits: Collection[str] | None, now_ns: int, *, empty: bool
    ) -> None:
        """The source was asked, and the records that come next are of `split`; called before they come.

        Args:
            splits: those that are open after the poll; None: the source does not tell splits apart.
            now_ns: monotonic.
            empty: no record came.
        """
        ...


class Progress:
    """Watermarks on their way through the operators of one chain, head first."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        #: By position; asked once, since the question is a slow one.
        self._acting = [o if isinstance(o, EventTimeOperator) else None for o in operators]
        self._generators = {
            position: operator
            for position, operator in enumerate(operators)
            if isinstance(operator, WatermarkGenerator)
        }
        self._split_generators = [
            g for g in self._generators.values() if isinstance(g, SplitGenerator)
        ]
        #: What has come to each operator, and last what has left the tail.
        self._come = [MIN_WATERMARK] * (len(operators) + 1)
        #: What each operator is done with.
        self._done = [MIN_WATERMARK] * len(operators)
        #: (position, watermark) of the one operator that has more to emit.
        self._pending: tuple[int, int] | None = None
        self._records = 0

    @property
    def generates(self) -> bool:
        """Records may raise the watermark."""
        return bool(self._generators)

    def opened(self, splits: Collection[str]) -> None:
        """See `SplitGenerator`."""
        for generator in self._split_generators:
            generator.opened(splits)

    def polled(self, polled: Polled, splits: Collection[str] | None, now_ns: int) -> None:
        """See `SplitGenerator`."""
        for generator in self._split_generators:
            generator.polled(polled.split, splits, now_ns, empty=not polled.batches)

    def come(self, watermark_ns: int) -> None:
        """Event time has come to the chain."""
        self._come[0] = max(self._come[0], watermark_ns)

    def advance(self, rows_max: int, feed: Feed) -> Iterator[pa.RecordBatch]:
        """Pass watermarks on as far as they go in one call; each operator is asked at most once, one that is not done before all others."""
        first = 0 if self._pending is None else self._pending[0]
        for position in range(first, len(self._acting)):
            operator, come = self._acting[position], self._come[position]
            if self._pending is not None and self._pending[0] == position:
                come = self._pending[1]
            if operator is not None and come > self._done[position]:
                advanced = operator.advance(come, rows_max)
                for batch in advanced.batches:
                    yield from feed(position + 1, batch)
                self._pending = None if advanced.done else (position, come)
                if not advanced.done:
                    return
            self._done[position] = come
            passed = self._passed(position, come)
            self._come[position + 1] = max(self._come[position + 1], passed)

    @property
    def is_pending(self) -> bool:
        """An operator is to be asked again for the same watermark, before anything else."""
        return self._pending is not None

    def time(self) -> ChainTime:
        """Say where event time stands, after a call."""
        records = sum(generator.records for generator in self._generators.values())
        spoke, self._records = records > self._records, records
        behind = any(
            operator is not None and self._come[position] > self._done[position]
            for position, operator in enumerate(self._acting)
        )
        return ChainTime(self._come[-1], behind, spoke)

    def _passed(self, position: int, come: int) -> int:
        generator = self._generators.get(position)
        if generator is None or come == MAX_WATERMARK:
            return come
        return generator.watermark_ns
