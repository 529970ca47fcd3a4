"""Data connections by epoch.

What is done with effects, every job in threads and every simulated run shows.
"""

from __future__ import annotations

from headrace.channels.buffer import ChannelId
from headrace.channels.wire import CreditFrame
from headrace.engine.drivers.worker_performer import Peers
from headrace.engine.worker import worker_events as w

_FRAME = CreditFrame(ChannelId(0, 0, 1), 10)


def test_a_frame_goes_to_the_worker_of_its_epoch_and_comes_from_there() -> None:
    peers: Peers[int] = Peers()
    peers.dialled(7, 2, 1)
    assert peers.to(2, 1) is None
    assert peers.connected(7, 2, 1) == w.PeerConnected(2, 1)
    assert peers.to(2, 1) == 7
    assert peers.to(3, 1) is None
    assert peers.received(7, _FRAME) == w.FramesReceived(2, 1, (_FRAME,))


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
