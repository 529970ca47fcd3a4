"""Data connections by epoch.

What is done with effects, every job in threads and every simulated run shows.
"""

from __future__ import annotations

import pytest

from headrace.channels.buffer import ChannelId
from headrace.channels.wire import CreditFrame
from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.drivers.worker_performer import Peers, open_failed
from headrace.engine.storage.snapshots import CorruptState
from headrace.engine.worker import worker_events as w
from headrace.recovery.store import StoreUncertain

_FRAME = CreditFrame(ChannelId(0, 0, 1), 10)


def test_a_frame_goes_to_the_worker_of_its_epoch_and_comes_from_there() -> None:
    peers: Peers[int] = Peers()
    peers.dialled(7, 2, 1)
    assert peers.to(2, 1) is None
    assert peers.connected(7, 2, 1) == w.PeerConnected(2, 1)
    assert peers.to(2, 1) == 7
    assert peers.to(3, 1) is None
    assert peers.received(7, _FRAME) == w.FrameReceived(2, 1, _FRAME)


def test_a_lost_connection_is_told_once_and_leads_nowhere() -> None:
    peers: Peers[int] = Peers()
    peers.connected(7, 2, 1)
    assert peers.disconnected(7, "reset") == w.PeerLost(2, 1, "reset")
    assert peers.to(2, 1) is None
    assert peers.disconnected(7, "reset") is None
    assert peers.received(7, _FRAME) is None


def test_connections_that_are_left_say_nothing_any_more() -> None:
    peers: Peers[int] = Peers()
    peers.connected(7, 2, 1)
    peers.dialled(8, 2, 0)
    peers.connected(9, 3, 1)
    assert peers.leave(2) == [7, 8]
    assert peers.received(7, _FRAME) is None
    assert peers.disconnected(8, "closed") is None
    assert peers.to(3, 1) == 9


def test_storage_that_does_not_answer_is_worth_another_try_and_the_users_mistake_is_not() -> None:
    silent = open_failed(3, SubtaskId(1, 0), StoreUncertain("job/x", "no answer"))
    assert isinstance(silent, w.WorkFailed)
    assert not silent.fatal
    assert "the checkpoint could not be read" in silent.reason
    damaged = open_failed(3, SubtaskId(1, 0), CorruptState("cut short"))
    assert damaged == w.AttemptLoadFailed(3, "cut short")
    refused = open_failed(3, SubtaskId(1, 0), UserError("no such column"))
    assert refused == w.WorkFailed(3, SubtaskId(1, 0), "no such column", "", fatal=True)


@pytest.mark.parametrize(
    "error",
    [UserCodeError("score", "ValueError: 7", "Traceback"), ValueError("7"), SystemExit("7")],
)
def test_an_exception_of_user_code_at_the_start_is_worth_another_try(error: BaseException) -> None:
    event = open_failed(3, SubtaskId(1, 0), error)
    assert isinstance(event, w.WorkFailed)
    assert not event.fatal
    assert "7" in event.reason
    assert event.details
