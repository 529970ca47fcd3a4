"""The event time of each split of a source, and of the subtask that reads the splits.

A subtask that reads several splits, for example partitions of a topic, meets their records in an
arbitrary order: one split may be hours behind another. So each split keeps its newest time, and the
oldest of these times counts. A silent split becomes idle and stops counting when the other splits
have had their turn since; when all splits are idle, the newest time counts. A finished split holds
no time back.

A split's time is state that goes with the split to the split's reader after a restart or a rescale.
Records without a split (a source that does not tell splits apart, or a stream behind an exchange)
belong to the nameless split "": each subtask has its own, which at another parallelism starts from
the oldest subtask's time.

Source: FLIP-27, split-level watermarks, and Flink's `WatermarkOutputMultiplexer` (behaviour).
Deviations: Flink keeps no watermarks in checkpoints, and calls splits idle by the clock alone, even
when the job had no time for the splits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK

from ..contract.operators import OperatorContext, RestoredState, StateKind, StateSnapshot

#: The split of records that are of none.
NAMELESS: Final = ""
#: A split is idle when this many rounds, of one poll per split each, brought no record of the
#: split: a fair reader would have come to it.
_ROUNDS: Final = 2

_STATE: Final = "newest"
_SCHEMA: Final = pa.schema(
    [
        ("subtask", pa.int64()),
        ("parallelism", pa.int64()),
        ("split", pa.string()),
        ("newest_ns", pa.int64()),
    ]
)


class SplitTimes:
    """The newest time of each split of one subtask; nanoseconds since 1970.

    Args:
        idle_after_ns: a split without records for so long is left out; None: none ever is.
    """

    def __init__(self, idle_after_ns: int | None = None) -> None:
        self._idle_after_ns = idle_after_ns
        self._context: OperatorContext | None = None
        #: {split: newest time} of open splits that had records, and of `NAMELESS`, which includes
        #: finished splits.
        self._newest: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        #: Whose `_newest` may differ from what is committed.
        self._changed: set[str] = set()
        #: As last told; None: the source does not tell splits apart.
        self._open: Collection[str] | None = None
        #: The checkpoint's times of splits, until the splits of this subtask are known.
        self._restored: dict[str, int] = {}
        #: {open split: (time, polls) of its last records, or of its opening}.
        self._spoke: dict[str, tuple[int, int]] = {}
        self._split = NAMELESS
        self._now_ns = 0
        self._polls = 0

    @property
    def newest_ns(self) -> int | None:
        """The subtask's event time; None: a split has not begun."""
        if not self._open:
            return self._newest.get(NAMELESS)
        speaking = [split for split in self._open if not self._is_idle(split)]
        if not speaking:
            return max((self._newest[s] for s in self._open if s in self._newest), default=None)
        times = [self._newest.get(split) for split in speaking]
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None

    def begin(self, context: OperatorContext) -> None:
        """Note which subtask this is."""
        self._context = context

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the nameless split's time now, and other times once `opened` names the splits."""
        assert self._context is not None, "begun"
        rows = [row for state in states for row in state.table.to_pylist()]
        nameless = [row for row in rows if not row.get("split")]
        here = (self._context.index, self._context.parallelism)
        mine = [row for row in nameless if (row["subtask"], row["parallelism"]) == here]
        times = [row["newest_ns"] for row in mine or nameless]
        self._newest = {}
        if times and None not in times:
            self._newest[NAMELESS] = min(times)
        # A split has one reader at a time, so there is one row of it.
        self._restored = {row["split"]: row["newest_ns"] for row in rows if row.get("split")}
        self._committed = dict(self._newest)
        self._changed.clear()
        self._open = None
        self._spoke.clear()

    def opened(self, splits: Collection[str]) -> None:
        """Note the subtask's splits before its first poll."""
        self._hold(splits)
        self.commit()

    def polled(
        self, split: str, splits: Collection[str] | None, now_ns: int, *, empty: bool
    ) -> None:
        """Note a poll of the source: the next records are of `split`.

        Args:
            splits: the open splits; None: the source does not tell splits apart.
            now_ns: a monotonic clock's.
            empty: no record of any split came.
        """
        self._split, self._now_ns = split, now_ns
        if self._polls == 0:
            self._spoke = dict.fromkeys(self._spoke, (now_ns, 0))
        if splits is not None:
            # A reader that has nothing has looked at all of them.
            self._polls += max(1, len(splits)) if empty else 1
            self._hold(splits)

    def came(self, newest_ns: int) -> None:
        """A record of the current split happened then."""
        # Of a split that ended with these very records only the past is left.
        if self._split in self._spoke:
            # Noted here, not when the split was read: a split whose records are all filtered out
            # before the generator is silent, too.
            self._spoke[self._split] = (self._now_ns, self._polls)
            self._rise(self._split, newest_ns)
        else:
            self._rise(NAMELESS, newest_ns)

    def commit(self) -> None:
        """Publish."""
        for split in sorted(self._changed):
            if split in self._newest:
                self._committed[split] = self._newest[split]
            else:
                self._committed.pop(split, None)
        self._changed.clear()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the committed times."""
        assert self._context is not None, "begun"
        times: dict[str, int | None] = {NAMELESS: None, **self._committed}
        rows = {
            "subtask": [self._context.index] * len(times),
            "parallelism": [self._context.parallelism] * len(times),
            "split": list(times),
            "newest_ns": list(times.values()),
        }
        return (StateSnapshot(_STATE, StateKind.UNION, lambda: pa.table(rows, schema=_SCHEMA)),)

    def _hold(self, splits: Collection[str]) -> None:
        if splits is self._open:
            return
        self._open = splits
        for split in [split for split in self._spoke if split not in splits]:
            del self._spoke[split]
            self._changed.add(split)
            if split in self._newest:
                self._rise(NAMELESS, self._newest.pop(split))
        for split in splits:
            if split not in self._spoke:
                self._spoke[split] = (self._now_ns, self._polls)
                if split in self._restored:
                    self._rise(split, self._restored.pop(split))

    def _rise(self, split: str, newest_ns: int) -> None:
        if newest_ns > self._newest.get(split, -MAX_WATERMARK - 1):
            self._newest[split] = newest_ns
            self._changed.add(split)

    def _is_idle(self, split: str) -> bool:
        assert self._open is not None, "there are splits"
        spoke_ns, polls = self._spoke[split]
        return (
            self._idle_after_ns is not None
            and self._now_ns - spoke_ns >= self._idle_after_ns
            and self._polls - polls >= _ROUNDS * len(self._open)
        )
