"""Simulated sockets take a part of what waits, in the outbox's order, and tell of it as late as the
product does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.connection_room import RoomLimits
from headrace.channels.wire import BufferFrame, CreditFrame, Frame
from headrace.engine.simulation.campaign.outgoing import Outgoing
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.scheduler import MILLISECOND_NS, Scheduler

BATCH = pa.record_batch({"n": [1]})
CHANNEL = ChannelId(0, 0, 1)


class Sockets:
    """The outboxes of a process over an empty world; notes what is sent and told."""

    def __init__(self, floor_bytes: int) -> None:
        self.scheduler = Scheduler(3)
        env: Any = SimpleNamespace(
            scheduler=self.scheduler,
            coverage=Coverage(),
            faults=SimpleNamespace(network_delay_ns=MILLISECOND_NS),
        )
        self.sent: list[tuple[int, Frame]] = []
        self.told: list[tuple[int, int, bool]] = []
        limits = RoomLimits(1, floor_bytes, floor_bytes)
        self.outgoing = Outgoing(
            env,
            limits,
            lambda connection, frame: self.sent.append((connection, frame)),
            lambda *told: self.told.append(told),
        )

    def run(self) -> None:
        while self.scheduler.step():
            pass


def data(position: int) -> BufferFrame:
    return BufferFrame(CHANNEL, Buffer.of(position, BATCH))


def test_frames_leave_in_the_order_of_the_outbox_and_all_is_told() -> None:
    sockets = Sockets(floor_bytes=2)
    frames = [data(position) for position in range(9)]
    for frame in frames:
        sockets.outgoing.put(7, frame)
    sockets.outgoing.put(7, CreditFrame(CHANNEL, 5))
    assert not sockets.sent
    sockets.run()
    assert sockets.sent == [(7, frame) for frame in (CreditFrame(CHANNEL, 5), *frames)]
    assert sum(size for _, size, _ in sockets.told) == sum(f.buffer.size_bytes for f in frames)
    assert [dry for _, _, dry in sockets.told] == [False] * (len(sockets.told) - 1) + [True]


def test_little_data_stays_untold() -> None:
    sockets = Sockets(floor_bytes=1_000)
    sockets.outgoing.put(7, data(0))
    sockets.run()
    assert len(sockets.sent) == 1
    assert not sockets.told


def test_frames_of_an_ended_connection_go_nowhere() -> None:
    sockets = Sockets(floor_bytes=2)
    sockets.outgoing.put(7, data(0))
    sockets.outgoing.drop(7)
    sockets.outgoing.put(8, data(1))
    sockets.run()
    assert sockets.sent == [(8, data(1))]
