"""Pieces of work of a chain, and their results.

The subtask machine orders a piece (`RunWork`), `Chain.run` does it in the subtask's thread, and the
result goes back to the machine as an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK

from ..contract.operators import SourceStatus, StateSnapshot, Transaction

#: By output edge: (target among the edge's channels, batch, its size in bytes), in order of
#: emission. The subtask's thread takes the size: asking Arrow for it gives the GIL away, and the
#: owner thread would have to win it back.
Outputs = tuple[tuple[tuple[int, pa.RecordBatch, int], ...], ...]


@dataclass(frozen=True, slots=True)
class ProcessWork:
    """Feed `parts` into input `port`: runs of records, each channel's in order.

    `now_ns`: the clock, since 1970.
    """

    port: int
    parts: tuple[pa.RecordBatch, ...]
    rows: int
    now_ns: int = 0


@dataclass(frozen=True, slots=True)
class PollWork:
    """Ask the source for about `rows_max` rows. `now_ns`: monotonic."""

    rows_max: int
    now_ns: int = 0


@dataclass(frozen=True, slots=True)
class AdvanceWork:
    """Let the operators emit about `rows_max` rows at this event time and clock."""

    watermark_ns: int
    rows_max: int
    now_ns: int = 0


@dataclass(frozen=True, slots=True)
class FinishWork:
    """Let the operators emit their last records: all inputs have ended."""


@dataclass(frozen=True, slots=True)
class PrecommitWork:
    """Flush the sink's transaction for this checkpoint."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class CompletedWork:
    """Tell the source that a checkpoint is complete, and the states of the source in it.

    The performer adds the states, which no machine sees.
    """

    checkpoint: int
    states: tuple[StateSnapshot, ...] = ()


Work = ProcessWork | PollWork | AdvanceWork | FinishWork | PrecommitWork | CompletedWork


class ChainTime(NamedTuple):
    """Event time after a call of a chain.

    Attributes:
        watermark_ns: the tail's.
        pending: an operator has more to emit for a watermark.
        spoke: records came to a generator of the chain in this call.
        due_ns: due time of the first processing-time timer of the chain, in nanoseconds since 1970;
            None: no timer is set.
    """

    watermark_ns: int = MIN_WATERMARK
    pending: bool = False
    spoke: bool = False
    due_ns: int | None = None


#: What a call says that had nothing to do with event time.
NO_TIME: Final = ChainTime()


class WorkDone(NamedTuple):
    """The piece of work numbered `work` succeeded.

    Attributes:
        rows_polled: rows that the source handed out, of a poll.
        rows_out: results of the last operator, however many edges take them; or rows that the
            sink wrote.
        elapsed_ns: duration of the call; the chain has no clock, so the caller sets `elapsed_ns`.
        status, wait_ns: the source's answer to a poll.
        transactions: (sink operator, transaction) of a pre-commit.
        time: event time inside the chain after the call.
        rows_late: late records since the last call.
        rows_failed: records since the last call that failed, and were routed or dropped.
        dropped: the last failure for which a record was dropped, in words; empty: none was.
        spent: (operator's place in the chain, nanoseconds in its calls), set by the caller as
            `elapsed_ns`.
    """

    work: int
    outputs: Outputs = ()
    rows_out: int = 0
    elapsed_ns: int = 0
    status: SourceStatus = SourceStatus.MORE
    wait_ns: int = 0
    transactions: tuple[tuple[str, Transaction], ...] = ()
    time: ChainTime = NO_TIME
    rows_late: int = 0
    rows_polled: int = 0
    rows_failed: int = 0
    dropped: str = ""
    spent: tuple[tuple[int, int], ...] = ()
