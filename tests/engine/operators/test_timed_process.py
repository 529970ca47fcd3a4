"""Timers of a processor: when they fire, in which order, in how many calls, and what a cut keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.api.errors import UserCodeError, UserError
from headrace.engine.operators.base import EventTimeOperator, OperatorContext, RestoredState
from headrace.engine.operators.process import (
    ProcessOperator,
    StatefulProcessor,
    declared_states,
    has_timers,
)
from headrace.engine.operators.timed_process import TimedProcessOperator
from headrace.engine.state.keyed import value_state

IN = pa.schema([("k", pa.int64()), ("t", pa.int64())])
OUT = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("n", pa.int64())])


class Counts(StatefulProcessor):
    """Counts a key's records, and tells at each of their times how many there were."""

    n = value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.n.value += 1
        self.timers.set(row["t"])

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        yield {"k": key, "t": time_ns, "n": self.n.value}


class Forever(StatefulProcessor):
    """Each timer sets the next one."""

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.timers.set(row["t"])

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        self.timers.set(time_ns + 10)
        yield {"k": key, "t": time_ns, "n": len(self.timers)}


class Deaf(StatefulProcessor):
    """Sets timers and has no on_timer."""

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.timers.set(row["t"])


class Broken(Counts):
    """Fails when a timer fires."""

    def on_timer(self, key: Any, time_ns: int) -> Any:
        return {"k": key}


def opened(processor: type[StatefulProcessor]) -> TimedProcessOperator:
    operator = TimedProcessOperator(processor, ["k"], IN, OUT, operator="counts")
    operator.open(OperatorContext("job", "counts", 0, 1, 8, 0))
    return operator


def feed(operator: ProcessOperator, *rows: tuple[int, int]) -> None:
    batch = pa.RecordBatch.from_pylist([{"k": k, "t": t} for k, t in rows], schema=IN)
    assert list(operator.process(batch, 0)) == []
    operator.commit()


def advance(
    operator: TimedProcessOperator, watermark: int, rows_max: int = 100
) -> tuple[list[tuple[int, ...]], bool]:
    advanced = operator.advance(watermark, rows_max)
    operator.commit()
    return [tuple(r.values()) for b in advanced.batches for r in b.to_pylist()], advanced.done


def restored_from(
    operator: ProcessOperator, processor: type[StatefulProcessor]
) -> TimedProcessOperator:
    again = opened(processor)
    again.restore([RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()])
    return again


def test_timers_fire_when_the_watermark_has_come_to_them_by_time_and_key() -> None:
    operator = opened(Counts)
    assert isinstance(operator, EventTimeOperator)
    feed(operator, (2, 5), (1, 7), (1, 5), (1, 9))
    assert advance(operator, 4) == ([], True)
    assert advance(operator, 7) == ([(1, 5, 3), (2, 5, 1), (1, 7, 3)], True)
    assert advance(operator, 8) == ([], True)
    assert advance(operator, MAX_WATERMARK) == ([(1, 9, 3)], True)


def test_a_storm_of_timers_comes_in_slices() -> None:
    operator = opened(Counts)
    feed(operator, *((key, 5) for key in range(5)))
    slices = []
    done = False
    while not done:
        rows, done = advance(operator, 5, 2)
        slices.append([row[0] for row in rows])
    assert slices == [[0, 1], [2, 3], [4]]


def test_a_cut_between_slices_keeps_what_has_not_fired() -> None:
    operator = opened(Counts)
    feed(operator, (1, 5), (2, 5), (3, 6))
    assert advance(operator, 6, 1)[0] == [(1, 5, 1)]
    list(operator.advance(6, 1).batches)  # the running work: it is cut before
    again = restored_from(operator, Counts)
    assert advance(again, 6) == ([(2, 5, 1), (3, 6, 1)], True)


def test_a_timer_may_set_the_next_one_until_the_input_ends() -> None:
    operator = opened(Forever)
    feed(operator, (1, 5))
    assert advance(operator, 30)[0] == [(1, 5, 1), (1, 15, 1), (1, 25, 1)]
    assert advance(operator, MAX_WATERMARK) == ([(1, 35, 0)], True)


def plain(processor: type[StatefulProcessor]) -> ProcessOperator:
    operator = ProcessOperator(processor, ["k"], IN, OUT, operator="counts")
    operator.open(OperatorContext("job", "counts", 0, 1, 8, 0))
    return operator


def test_a_processor_that_hears_no_timers_can_set_none() -> None:
    assert (has_timers(Counts), has_timers(Deaf)) == (True, False)
    operator = plain(Deaf)
    assert not isinstance(operator, EventTimeOperator)
    with pytest.raises(UserCodeError, match="on_timer"):
        feed(operator, (1, 5))


def test_what_goes_wrong_in_a_timer_is_told_with_its_key() -> None:
    operator = opened(Broken)
    feed(operator, (7, 5))
    with pytest.raises(UserCodeError, match="where an iterable of dicts is due"):
        operator.advance(5, 10)


def test_timers_of_a_checkpoint_that_nobody_hears_any_more_are_refused() -> None:
    operator = opened(Counts)
    feed(operator, (1, 5))

    class Quiet(StatefulProcessor):
        n = value_state(pa.int64(), default=0)

    with pytest.raises(UserError, match="'timers'"):
        plain(Quiet).restore(
            [RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()]
        )


def test_no_state_takes_the_name_of_the_timers() -> None:
    class Wrong(StatefulProcessor):
        timers = value_state(pa.int64())  # type: ignore[assignment]  # the mistake in question

    with pytest.raises(UserError, match="rename"):
        declared_states(Wrong)
