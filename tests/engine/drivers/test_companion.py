"""The companion of a worker: its pulse while the worker's owner thread runs, and its end."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.channels.wire import ControlFrame
from headrace.engine.contract import messages as m
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.contract.options import Network
from headrace.engine.drivers.companion import Companion
from headrace.engine.network.network import ConnectionId, NetworkEvent, Received

from ..network.network_nodes import COORDINATOR, SECRET, Node, node

BEAT_S = 0.05


@pytest.fixture
def coordinator() -> Iterator[Node]:
    with node(COORDINATOR) as running:
        yield running


@pytest.fixture
def companion(coordinator: Node) -> Iterator[Companion]:
    address = coordinator.network.listen("127.0.0.1")
    quick = Network(heartbeat=BEAT_S, heartbeat_timeout=1)
    made = Companion(
        WorkerProgram("job", address, SECRET, b"", 1, network=quick), Incarnation(1, 2)
    )
    yield made
    made.stop()


def pulses(node: Node, for_s: float) -> list[m.Pulse]:
    """Pulses that come while this thread, the owner, runs now and then."""
    found = []
    deadline_s = time.monotonic() + for_s
    while time.monotonic() < deadline_s:
        time.sleep(0.005)
        found += [told for event in arrived(node) if (told := pulse_of(event)) is not None]
    return found


def arrived(node: Node) -> list[NetworkEvent]:
    events: list[NetworkEvent] = []
    try:
        while True:
            events += node._events.get_nowait()
    except queue.Empty:
        return events


def pulse_of(event: NetworkEvent) -> m.Pulse | None:
    if not (isinstance(event, Received) and isinstance(event.frame, ControlFrame)):
        return None
    message = m.decode_for_coordinator(event.frame.body)
    assert isinstance(message, m.Pulse)
    return message


def test_the_pulse_names_the_worker_and_the_calls_under_way(
    coordinator: Node, companion: Companion
) -> None:
    assert m.Pulse(1, 2, []) in pulses(coordinator, 1.0)
    record = companion.calls.recorder(0, SubtaskId(3, 1))
    over = threading.Event()

    def call() -> None:
        record(5)
        over.wait()
        record(None)

    thread = threading.Thread(target=call)
    thread.start()
    assert pulses(coordinator, 1.0)[-1] == m.Pulse(1, 2, [m.Call(3, 1, 5)])
    over.set()
    thread.join()
    assert pulses(coordinator, 1.0)[-1] == m.Pulse(1, 2, [])


def test_an_owner_thread_that_stands_has_no_pulse(coordinator: Node, companion: Companion) -> None:
    assert pulses(coordinator, 1.0)
    time.sleep(1.0)
    # Of the second only what was sent before, or when it began and ended.
    assert sum(pulse_of(event) is not None for event in arrived(coordinator)) <= 3


def test_a_broken_connection_is_made_again(coordinator: Node, companion: Companion) -> None:
    assert pulses(coordinator, 1.0)
    coordinator.network.close(ConnectionId(1))
    pulses(coordinator, 0.5)
    assert pulses(coordinator, 0.5)


def test_a_stopped_companion_takes_its_processes_along(companion: Companion) -> None:
    process = companion.process()
    (pid,) = children(companion._pid)
    companion.stop()
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.01)
    process.close()
    # The fixture stops it once more.
    companion._pid = os.fork()
    if not companion._pid:
        time.sleep(60)
        os._exit(0)


def children(pid: int) -> list[int]:
    deadline_s = time.monotonic() + 10
    while not (text := Path(f"/proc/{pid}/task/{pid}/children").read_text()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return [int(child) for child in text.split()]
