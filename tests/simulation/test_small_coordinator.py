"""The driver process of a small scope: what it orders, and what is left when it dies amid its
orders.
"""

from __future__ import annotations

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.simulation.exploration.small_coordinator import (
    Calls,
    CoordinatorState,
    Died,
    System,
)
from headrace.engine.simulation.exploration.small_scope import Scope
from headrace.engine.simulation.sink import TransactionStatus
from headrace.recovery.metadata import TransactionRecord

SCOPE = Scope(CheckpointMode.ALIGNED)
PREPARED, COMMITTED = TransactionStatus.PREPARED, TransactionStatus.COMMITTED


def new() -> CoordinatorState:
    return CoordinatorState(SCOPE, SCOPE.plan())


def test_it_begins_with_a_start_that_storage_answers() -> None:
    state, calls = new(), Calls({}, System())
    assert state.stores
    assert not state.timer_due()
    assert state.store(calls) == []
    assert list(calls.objects) == ["job/epochs/1"]
    assert [type(effect) for effect in state.sinking] == [d.RecoverSinks]
    assert not state.timer_due()


def test_a_dead_process_has_made_as_many_calls_as_it_could() -> None:
    state = new()
    records = tuple(TransactionRecord("sink", id, {}) for id in ("a", "b"))
    state.sinking.append(d.CommitTransactions(1, records))
    transactions = dict.fromkeys(("a", "b"), (PREPARED, ()))
    done = []
    for allowed in range(4):
        calls = Calls({}, System(dict(transactions)), allowed)
        if allowed < 3:
            with pytest.raises(Died):
                state.partly(calls, sinks_first=False)
        else:
            state.partly(calls, sinks_first=False)
        committed = [status is COMMITTED for status, _ in calls.system.transactions.values()]
        done.append((len(calls.objects), *committed))
    assert done == [(0, False, False), (1, False, False), (1, True, False), (1, True, True)]


def test_a_commit_of_what_was_aborted_is_a_violation() -> None:
    state = new()
    state.store(Calls({}, System()))
    state.sinking.clear()
    state.sinking.append(d.CommitTransactions(1, (TransactionRecord("sink", "a", {}),)))
    system = System({"a": (TransactionStatus.ABORTED, ())})
    (output, *_) = state.sink(Calls({}, system))
    assert output.kind == "violation"
    assert "was aborted" in output.value
