"""Bugs in operators of event time and of two streams; the simulator must find each.

A failure or a rescale brings them out.

As in `mutants.py`, a mutant is a function that patches the engine. Each comes with the job whose
task it spoils.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.contract.operators import RestoredDatabase, RestoredState, StateKind
from headrace.engine.operators.co_process import CoProcessOperator
from headrace.engine.operators.connect import ConnectOperator
from headrace.engine.operators.expiring_aggregate import ExpiringAggregate
from headrace.engine.operators.join import JoinOperator
from headrace.engine.operators.lateness import WATERMARK_STATE, LateRecords
from headrace.engine.operators.process import ProcessOperator
from headrace.engine.operators.session_join import SessionJoinOperator
from headrace.engine.operators.timed_process import TimedProcessOperator
from headrace.engine.operators.window_store import NEVER
from headrace.engine.simulation.jobs.graphs import Kind
from headrace.engine.state.backend import DUE_SUFFIX
from headrace.engine.state.broadcast import BroadcastState
from headrace.engine.state.expiry import stamp_name
from headrace.engine.state.rocks.database import RocksDatabase
from headrace.engine.state.runs import MATCHED
from headrace.engine.state.timers import TimerQueue

from .mutants import Mutant

#: {name: (the kind of task that it spoils, the mutant)}.
MUTANTS: dict[str, tuple[Kind, Mutant]] = {}


def spoils(kind: Kind) -> Callable[[Mutant], Mutant]:
    """Enter a mutant under its name."""

    def entered(function: Mutant) -> Mutant:
        MUTANTS[function.__name__] = kind, function
        return function

    return entered


# --- windows --------------------------------------------------------------------------------------


@spoils(Kind.SLIDING)
def index_of_what_is_due_is_not_restored(patch: pytest.MonkeyPatch) -> None:
    restore = RocksDatabase.restore

    def without_index(self: RocksDatabase, databases: Sequence[RestoredDatabase]) -> None:
        restore(self, databases)
        keys = [key for entries in self.scan() for key, _ in entries]
        gone = [key for key in keys if key[3 : 3 + key[2]].endswith(DUE_SUFFIX.encode())]
        self.load((key, None) for key in gone)

    patch.setattr(RocksDatabase, "restore", without_index)


@spoils(Kind.LATE)
def late_records_are_told_twice(patch: pytest.MonkeyPatch) -> None:
    taken: WeakKeyDictionary[LateRecords, Any] = WeakKeyDictionary()
    take = LateRecords.take

    def again(self: LateRecords) -> Any:
        before, taken[self] = taken.get(self, []), take(self)
        return [*before, *taken[self]]

    patch.setattr(LateRecords, "take", again)


# --- joins ----------------------------------------------------------------------------------------


@spoils(Kind.JOIN)
def rows_of_moved_key_groups_are_dropped(patch: pytest.MonkeyPatch) -> None:
    batches = JoinOperator._batches

    def own(self: JoinOperator, states: Sequence[RestoredState], side: int) -> Any:
        return batches(self, states, side)[:1]

    patch.setattr(JoinOperator, "_batches", own)


@spoils(Kind.WINDOW_JOIN)
def who_has_met_is_forgotten_by_a_restore(patch: pytest.MonkeyPatch) -> None:
    batches = JoinOperator._batches

    def unmatched(self: JoinOperator, states: Sequence[RestoredState], side: int) -> Any:
        found = batches(self, states, side)
        nobody = [pa.array([False] * batch.num_rows) for batch in found]
        at = [batch.schema.get_field_index(MATCHED.name) for batch in found]
        changed = zip(found, at, nobody, strict=True)
        return [batch.set_column(i, MATCHED, column) for batch, i, column in changed]

    patch.setattr(JoinOperator, "_batches", unmatched)


@spoils(Kind.SESSION_JOIN)
def a_rescaled_session_join_forgets_moved_keys(patch: pytest.MonkeyPatch) -> None:
    restore = SessionJoinOperator.restore

    def own(self: SessionJoinOperator, states: Sequence[RestoredState]) -> None:
        first = {state.name: state for state in reversed(states)}
        kept = [s for s in states if s.name == WATERMARK_STATE or s is first[s.name]]
        restore(self, kept)

    patch.setattr(SessionJoinOperator, "restore", own)


@spoils(Kind.SESSION_JOIN)
def sessions_are_not_restored_beside_their_records(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: SessionJoinOperator, states: Sequence[RestoredState]) -> Any:
        return []

    patch.setattr(SessionJoinOperator, "_of_sessions", nothing)


# --- state that expires ---------------------------------------------------------------------------


@spoils(Kind.LIVES)
def ttl_is_judged_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    now = TimedProcessOperator._now

    def by_clock(self: TimedProcessOperator, batch: pa.RecordBatch) -> Any:
        times = now(self, batch)
        return None if times is None else np.full_like(times, self._current.clock_ns)

    patch.setattr(TimedProcessOperator, "_now", by_clock)


@spoils(Kind.LIVES)
def when_state_was_written_is_not_restored(patch: pytest.MonkeyPatch) -> None:
    restore = ProcessOperator.restore

    def timeless(self: ProcessOperator, states: Sequence[RestoredState]) -> None:
        restore(self, [state for state in states if not state.name.endswith(stamp_name(""))])

    patch.setattr(ProcessOperator, "restore", timeless)


@spoils(Kind.EXPIRING)
def restored_keys_of_an_aggregate_do_not_expire(patch: pytest.MonkeyPatch) -> None:
    load = ExpiringAggregate.load

    def undying(self: ExpiringAggregate, slots: Any, rows: pa.RecordBatch) -> None:
        load(self, slots, rows)
        self._store.last.working[slots] = NEVER

    patch.setattr(ExpiringAggregate, "load", undying)


# --- timers by the clock --------------------------------------------------------------------------


@spoils(Kind.ALARMS)
def alarms_fire_again_after_a_restore(patch: pytest.MonkeyPatch) -> None:
    pop, freeze = TimerQueue.pop, TimerQueue.freeze
    fired: WeakKeyDictionary[TimerQueue, dict[Any, tuple[int, ...]]] = WeakKeyDictionary()

    def remembered(self: TimerQueue, until_ns: int) -> Any:
        due = pop(self, until_ns)
        if due is not None:
            fired.setdefault(self, {})[due[0]] = (due[1],)
        return due

    def frozen(self: TimerQueue, *arguments: Any) -> Any:
        committed, self._committed = self._committed, fired.get(self, {}) | self._committed
        table = freeze(self, *arguments)
        self._committed = committed
        return table

    patch.setattr(TimerQueue, "pop", remembered)
    patch.setattr(TimerQueue, "freeze", frozen)


# --- two streams ----------------------------------------------------------------------------------


@spoils(Kind.CO_PROCESS)
def sides_are_mixed_up_by_a_restore(patch: pytest.MonkeyPatch) -> None:
    restore = CoProcessOperator.restore

    def left_alone(self: CoProcessOperator, states: Sequence[RestoredState]) -> None:
        restore(self, states)
        self._left_ports = 1 << 10

    patch.setattr(CoProcessOperator, "restore", left_alone)


# --- connected streams ----------------------------------------------------------------------------


@spoils(Kind.CONNECT)
def broadcast_state_is_not_restored(patch: pytest.MonkeyPatch) -> None:
    restore = ConnectOperator.restore

    def keyed(self: ConnectOperator, states: Sequence[RestoredState]) -> None:
        restore(self, [state for state in states if state.kind is not StateKind.BROADCAST])

    patch.setattr(ConnectOperator, "restore", keyed)


@spoils(Kind.CONNECT)
def broadcast_state_is_frozen_with_what_running_work_wrote(patch: pytest.MonkeyPatch) -> None:
    freeze = BroadcastState.freeze_entries

    def hasty(self: BroadcastState) -> Any:
        self.commit()
        return freeze(self)

    patch.setattr(BroadcastState, "freeze_entries", hasty)
