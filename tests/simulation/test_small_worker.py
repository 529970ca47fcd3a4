"""A worker process of a small scope: loads, runs what it is given, and says what it does to
others.
"""

from __future__ import annotations

from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.simulation.exploration.small_scope import Contents, Scope
from headrace.engine.simulation.exploration.small_worker import (
    WorkerState,
    without_history,
)
from headrace.engine.worker import worker_events as w

SCOPE = Scope(CheckpointMode.UNALIGNED, rows=(1, 1))
PEERS = [m.PeerAddress(worker, "host", 1, [worker]) for worker in range(2)]


def running() -> WorkerState:
    """Worker 1, which holds the second source alone, connected and at work."""
    state = WorkerState.begin(SCOPE, SCOPE.plan(), Contents(), 1)
    state.step(w.ControlReceived(m.Deploy(1, PEERS, 0, "job", "", [])))
    (reported,) = state.end(0, ())
    assert isinstance(reported.value, m.Deployed)
    state.step(w.ControlReceived(m.Start(1)))
    state.link = 1
    state.step(w.PeerConnected(1, 0))
    return state


def test_it_works_off_what_it_was_told_to_run() -> None:
    state = running()
    assert [pending.name() for pending in state.pending] == ["t0.1 PollWork"]
    (sent,) = state.end(0, ())
    assert (sent.kind, sent.value[0]) == ("peer", "frame")
    assert [pending.name() for pending in state.pending] == ["t0.1 FinishWork"]


def test_a_checkpoint_ends_with_a_file_and_an_acknowledgement_without_durations() -> None:
    state = running()
    state.step(w.ControlReceived(m.Trigger(1, 1, "unaligned", 0)))
    place = [pending.name() for pending in state.pending].index("file of chk-1")
    put, acknowledged = state.end(place, ())
    assert put.value == "job/chk-1/worker-1-e1.segment"
    assert acknowledged.value.subtasks[0].async_ns == 0
    assert state.contents.value(acknowledged.value.subtasks[0].states[0].offset) == 0


def test_a_new_deployment_ends_all_that_was_under_way() -> None:
    state = running()
    outputs = state.step(w.ControlReceived(m.Deploy(2, PEERS, 0, "job", "", [])))
    assert [(output.kind, output.value) for output in outputs] == [("unlink", 1)]
    assert [pending.name() for pending in state.pending] == ["LoadAttempt"]
    without_history(state)
    assert state.machine.fenced == 0


def test_state_that_is_missing_is_reported() -> None:
    state = WorkerState.begin(SCOPE, SCOPE.plan(), Contents(), 1)
    state.step(w.ControlReceived(m.Deploy(1, PEERS, 0, "job", "", [])))
    reported = state.end(0, ("job/chk-1/file",))[-1]
    assert isinstance(reported.value, m.DeployFailed)
