"""Event time inside a chain: the watermark at each operator, and the operator that acts next.

A watermark goes from operator to operator like a record. An operator with more to emit for a
watermark holds the watermark back until done, perhaps over several calls with a commit between. A
generator ignores all watermarks from upstream but the last: at the end of input all windows close.
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
    """An operator that makes watermarks from the records that pass."""

    @property
    def watermark_ns(self) -> int:
        """No further record is expected up to this time; MIN_WATERMARK before the first record."""
        ...

    @property
    def records(self) -> int:
        """Number of records since `open`."""
        ...


@runtime_checkable
class SplitGenerator(WatermarkGenerator, Protocol):
    """A generator with one watermark per split of the chain's source."""

    def opened(self, splits: Collection[str]) -> None:
        """Note the open splits (see `ReadsSplits`), before the first poll and after a `restore`."""
        ...

    def polled(
        self, split: str, splits: Collection[str] | None, now_ns: int, *, empty: bool
    ) -> None:
        """Note a poll of the source; the next records are of `split`.

        Called before the records come.

        Args:
            splits: the open splits after the poll; None: the source does not tell splits apart.
            now_ns: monotonic.
            empty: no record came.
        """
        ...


class Progress:
    """Watermarks on their way through the operators of one chain, head first."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        #: By position; asked once, since the question is a slow one.
        self._acting = [o if isinstance(o, EventTimeOperator) else None for o in operators]
        self._acts = any(operator is not None for operator in self._acting)
        self._generators = {
            position: operator
            for position, operator in enumerate(operators)
            if isinstance(operator, WatermarkGenerator)
        }
        self._split_generators = [
            g for g in self._generators.values() if isinstance(g, SplitGenerator)
        ]
        #: The watermark that has reached each operator; the last entry is the tail's output.
        self._come = [MIN_WATERMARK] * (len(operators) + 1)
        #: What each operator is done with.
        self._done = [MIN_WATERMARK] * len(operators)
        #: (position, watermark) of the operator that has more to emit.
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
        """Pass watermarks on as far as possible in one call.

        Each operator is asked at most once, an unfinished operator before all others.
        """
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
        """An operator must finish a watermark before any other work."""
        return self._pending is not None

    def time(self) -> ChainTime:
        """Say where event time stands, after a call."""
        if not self._generators and not self._acts:
            return ChainTime(self._come[-1])
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
