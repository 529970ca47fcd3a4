"""Event time through a chain: everybody whom it concerns is asked, in order, and nobody is
passed who is not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.engine.contract.operators import (
    Advanced,
    OperatorContext,
    RestoredState,
    StateSnapshot,
)
from headrace.engine.operators.progress import Progress
from headrace.engine.operators.work import ChainTime


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(numbers, pa.int64())})


class Plain:
    """An operator whom event time does not concern."""

    def open(self, context: OperatorContext) -> None: ...
    def restore(self, states: Sequence[RestoredState]) -> None: ...
    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        return (batch,)

    def finish(self) -> Iterable[pa.RecordBatch]:
        return ()

    def commit(self) -> None: ...
    def snapshot(self) -> Sequence[StateSnapshot]:
        return ()

    def close(self) -> None: ...


class Timers(Plain):
    """Emits its numbers up to the watermark, one a call."""

    def __init__(self, *times: int) -> None:
        self.times = sorted(times)
        self.told: list[int] = []

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        self.told.append(watermark_ns)
        due = [time for time in self.times if time <= watermark_ns]
        self.times = self.times[1:] if due else self.times
        return Advanced([batch(due[0])] if due else [], done=len(due) <= 1)


class Generator(Plain):
    """Makes watermarks of what it is set to."""

    def __init__(self) -> None:
        self.watermark_ns = MIN_WATERMARK
        self.records = 0


def fed(position: int, given: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """What a feed gives: numbers, with the position they were given to."""
    yield batch(*(x + position * 1000 for x in given["x"].to_pylist()))


def advanced(progress: Progress) -> list[int]:
    return [x for b in progress.advance(10, fed) for x in b["x"].to_pylist()]


def test_a_watermark_passes_those_whom_it_does_not_concern() -> None:
    progress = Progress([Plain(), Plain()])
    progress.come(7)
    assert advanced(progress) == []
    assert progress.time() == ChainTime(7, pending=False, spoke=False)


def test_an_operator_is_asked_again_until_it_is_done_and_then_the_next() -> None:
    first, second = Timers(1, 2, 9), Timers(4)
    progress = Progress([first, Plain(), second])
    progress.come(5)
    assert advanced(progress) == [1001]
    assert progress.time() == ChainTime(MIN_WATERMARK, pending=True)
    assert second.told == []
    assert advanced(progress) == [1002, 3004]
    assert progress.time() == ChainTime(5)
    assert (first.told, second.told) == ([5, 5], [5])


def test_who_is_not_done_is_asked_for_the_same_watermark_before_anyone_is_told_of_a_newer_one() -> (
    None
):
    first, second = Timers(), Timers(1, 2, 8)
    progress = Progress([first, second])
    progress.come(5)
    assert advanced(progress) == [2001]
    progress.come(9)
    assert advanced(progress) == [2002]
    assert (first.told, second.told) == ([5], [5, 5])
    assert progress.time().pending, "the newer one has not been passed on"
    assert advanced(progress) == [2008]
    assert progress.time() == ChainTime(9)


def test_nobody_is_told_the_same_watermark_twice() -> None:
    timers = Timers()
    progress = Progress([timers])
    for watermark in (5, 5, 3):
        progress.come(watermark)
        advanced(progress)
    assert timers.told == [5]


def test_a_generator_takes_notice_of_nothing_but_the_end() -> None:
    generator, timers = Generator(), Timers()
    progress = Progress([generator, timers])
    progress.come(100)
    advanced(progress)
    assert progress.time().watermark_ns == MIN_WATERMARK
    generator.watermark_ns, generator.records = 42, 3
    advanced(progress)
    assert progress.time() == ChainTime(42, spoke=True)
    assert progress.time() == ChainTime(42, spoke=False), "no records since"
    progress.come(MAX_WATERMARK)
    advanced(progress)
    assert progress.time().watermark_ns == MAX_WATERMARK
    assert timers.told == [42, MAX_WATERMARK]


def test_event_time_does_not_go_back_at_the_tail() -> None:
    generator = Generator()
    progress = Progress([generator])
    for watermark in (9, 4):
        generator.watermark_ns = watermark
        advanced(progress)
    assert progress.time().watermark_ns == 9
