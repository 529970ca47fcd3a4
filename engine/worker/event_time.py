"""Event time of one subtask: from the watermarks of its inputs to the watermarks of its outputs.

A rise of the combined input watermark becomes a piece of work (`AdvanceWork`), which may take
several slices: a storm of timers stays responsive, and a cut may be taken before, between and after
slices. Fired timers are gone from the state when a slice is committed, so a restored subtask, which
gets its watermark once more, fires the rest. Outputs hear of the watermark when the operators are
done. A chain without interest in event time passes watermarks on at once.

Event time never goes back: a channel that speaks again after it was idle, or is restored behind the
others, holds it where it is.

The clock comes in here, too: a chain tells when its first processing-time timer is due, and the
same piece of work lets it fire. A restored subtask gets such a piece at once, so timers that fell
due while the job was down fire then.

Source: Flink's watermark alignment of several inputs and its idleness (behaviour).
"""

from __future__ import annotations

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK, Watermark
from headrace.channels.gate import Gate

from ..contract.execution import EventTimeRole
from ..operators.work import AdvanceWork, ChainTime
from .result_partition import ResultPartition
from .subtask_spec import EventTimeSpec


class EventTime:
    """Event time of one subtask.

    Attributes:
        watermark_ns: event time at the operators; never goes back.
        passed_ns: event time told to the outputs.
    """

    def __init__(self, gate: Gate, results: ResultPartition, spec: EventTimeSpec) -> None:
        self._gate = gate
        self._results = results
        self._spec = spec
        self._asks = spec.role is not EventTimeRole.PASSES
        self.watermark_ns = spec.watermark_ns
        self.passed_ns = MIN_WATERMARK
        #: The operators have not been told, or are not done.
        self._behind = self._asks and spec.restored
        self._idle = False
        #: When the chain's first processing-time timer is due.
        self._due_ns: int | None = None
        #: When records came to the chain's generator last, or the subtask was busy.
        self._spoke_at_ns = 0

    def start(self, now_ns: int) -> None:
        """Begin; a restored subtask tells its outputs its watermark again."""
        self._spoke_at_ns = now_ns
        if not self._asks:
            self._pass_on(self.watermark_ns)
        self.moved()

    def moved(self) -> None:
        """The inputs' watermarks, their ends or their idleness may have changed."""
        if not self._gate.channels:
            return
        if self._spec.role is not EventTimeRole.MAKES:
            self._set_idle(self._gate.idle)
        self._come(self._gate.watermark_ns)

    def source_ended(self) -> None:
        """No record will come any more."""
        self._come(MAX_WATERMARK)

    @property
    def is_idle(self) -> bool:
        """The outputs were told not to wait for records at present."""
        return self._idle

    @property
    def is_at_rest(self) -> bool:
        """The operators have nothing to do: no watermark, no timer set, no call under way."""
        return not self._behind and self._due_ns is None

    def next_work(self, rows_max: int, now_ns: int) -> AdvanceWork | None:
        """Return work to do before any new record, if there is any."""
        is_due = self._due_ns is not None and self._due_ns <= now_ns
        if not self._behind and not is_due:
            return None
        return AdvanceWork(self.watermark_ns, rows_max, now_ns)

    def next_timer_ns(self, now_ns: int) -> int | None:
        """When the first processing-time timer is due.

        None: none is set, or the timer waits for the work or for room, not for time.
        """
        return None if self._due_ns is None or self._due_ns <= now_ns else self._due_ns

    def spoke(self, time: ChainTime, now_ns: int) -> None:
        """A call of the chain ended; its records have not gone out."""
        if self._spec.role is EventTimeRole.MAKES and time.spoke:
            self._spoke_at_ns = now_ns
            self._set_idle(False)

    def worked(self, time: ChainTime, told_ns: int | None = None) -> None:
        """A call of the chain ended, and its records are queued.

        `told_ns`: event time given to the call.
        """
        if not self._asks:
            return
        self._due_ns = time.due_ns
        if told_ns is not None:
            self._behind = self.watermark_ns > told_ns
        self._behind = self._behind or time.pending
        self._pass_on(time.watermark_ns)

    # --- idleness ---------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """When a silent generator turns idle."""
        if self._spec.idle_after_ns is None or self._idle or self.passed_ns == MAX_WATERMARK:
            return None
        return self._spoke_at_ns + self._spec.idle_after_ns

    def time_passed(self, now_ns: int, *, busy: bool) -> None:
        """Turn idle when due, unless the subtask is `busy`: work runs or waits for room."""
        deadline_ns = self.next_deadline_ns()
        if deadline_ns is None or now_ns < deadline_ns:
            return
        if busy:
            self._spoke_at_ns = now_ns
        else:
            self._set_idle(True)

    def _set_idle(self, idle: bool) -> None:
        if idle is not self._idle:
            self._idle = idle
            self._results.append_event(Watermark(self.passed_ns, idle))

    # --- helpers ----------------------------------------------------------------------------------

    def _come(self, watermark_ns: int) -> None:
        if watermark_ns <= self.watermark_ns:
            return
        self.watermark_ns = watermark_ns
        if self._asks:
            self._behind = True
        else:
            self._pass_on(watermark_ns)

    def _pass_on(self, watermark_ns: int) -> None:
        """Tell the outputs. The end of input says by itself that no record follows."""
        if watermark_ns <= self.passed_ns:
            return
        self.passed_ns = watermark_ns
        if watermark_ns < MAX_WATERMARK:
            self._results.append_event(Watermark(watermark_ns, self._idle))
