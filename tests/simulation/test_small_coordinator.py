"""The driver process of a small scope: what it orders, and what is left when it dies amid its orders."""

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


def begun() -> CoordinatorState:
    return CoordinatorState.begin(SCOPE, SCOPE.plan(), {}, (0, 0))[0]


def test_it_begins_with_a_claim_that_storage_answers() -> None:
    state, calls = begun(), Calls({}, System())
    assert [type(effect) for effect in state.storing] == [d.ClaimEpoch]
    assert state.store(calls) == []
    assert list(calls.files) == ["job/epochs/1"]
    assert [type(effect) for effect in state.sinking] == [d.RecoverSinks]
    assert not state.timer_due()


def test_a_dead_process_has_made_as_many_calls_as_it_could() -> None:
    state = begun()
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
        done.append((len(calls.files), *committed))
    assert done == [(0, False, False), (1, False, False), (1, True, False), (1, True, True)]


def test_a_commit_of_what_was_aborted_is_a_violation() -> None:
    state = begun()
    state.sinking.append(d.CommitTransactions(1, (TransactionRecord("sink", "a", {}),)))
    system = System({"a": (TransactionStatus.ABORTED, ())})
    (output, *_) = state.sink(Calls({}, system))
    assert output.kind == "violation"
    assert "was aborted" in output.value
