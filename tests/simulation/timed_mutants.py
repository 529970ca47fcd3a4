"""Bugs in windows, joins, timers and connected streams that a failure or a rescale brings out, each of which the simulator must find.

As in `mutants.py`, a mutant is a function that patches the engine. Each comes with the job whose task it spoils.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest

from headrace.engine.contract.operators import RestoredDatabase, RestoredState, StateKind
from headrace.engine.operators.connect import ConnectOperator
from headrace.engine.operators.join import JoinOperator
from headrace.engine.operators.lateness import LateRecords
from headrace.engine.simulation.jobs.graphs import Kind
from headrace.engine.state.backend import DUE_SUFFIX
from headrace.engine.state.broadcast import BroadcastState
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


# --- windows ----------------------------------------------------------------------------------------------------------


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


# --- joins ------------------------------------------------------------------------------------------------------------


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


# --- timers by the clock ----------------------------------------------------------------------------------------------


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


# --- connected streams ------------------------------------------------------------------------------------------------


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
