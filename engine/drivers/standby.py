"""The time before a coordinator begins: its workers come, and may fetch state that they will restore.

They were started while the job that they take the place of still runs. Whatever happens meanwhile is kept, in order, for the machine; a worker
that is lost here is the machine's business too. Only that workers which never came are started again cannot wait for it.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from headrace.channels.wire import ControlFrame
from headrace.recovery.metadata import SharedFile

from ..contract import messages as m
from ..contract.clock import now_ns
from ..coordinator import coordinator_events as d
from ..network.network import ConnectionId, Disconnected, Network, NetworkEvent, Received

#: So many workers that were started ahead may end before they register, and are started again.
_STILLBORN_MAX = 3

#: None: look at the clock again.
InboxItem = d.CoordinatorEvent | list[NetworkEvent] | None


class Standby:
    """Takes what comes out of a coordinator's inbox until its machine is there.

    Args:
        replace: starts a worker again.
    """

    def __init__(
        self,
        inbox: queue.SimpleQueue[InboxItem],
        network: Network,
        replace: Callable[[int], None],
    ) -> None:
        self._inbox = inbox
        self._network = network
        self._replace = replace
        #: What was taken out of the inbox and is the machine's to hear.
        self.early: list[InboxItem] = []
        #: {worker: its newest connection}
        self._there: dict[int, ConnectionId] = {}

    def await_workers(self, workers: int, timeout_s: float) -> str:
        """Wait until so many workers have registered. Returns what went wrong; empty: nothing."""
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        ended = 0
        while len(self._there) < workers:
            try:
                item = self._next(deadline_ns)
            except queue.Empty:
                missing = ", ".join(map(str, sorted(set(range(workers)) - self._there.keys())))
                return f"workers {missing} did not start in time"
            if isinstance(item, d.LauncherFailed):
                return item.reason
            if isinstance(item, d.WorkerExited) and item.worker not in self._there:
                ended += 1
                if ended > _STILLBORN_MAX:
                    return f"worker {item.worker} ended before it registered: {item.reason}"
                self._replace(item.worker)
                continue
            self.early.append(item)
            for connection, message in _messages(item):
                if isinstance(message, m.Register):
                    self._there[message.worker] = connection
        return ""

    def fetch_ahead(self, files: Mapping[int, Sequence[SharedFile]], timeout_s: float) -> int:
        """Have each worker fetch files, and wait until all that live have, or it takes too long; returns how many bytes they have."""
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        asked = {self._there[worker] for worker, wanted in files.items() if wanted}
        for worker, wanted in files.items():
            if wanted:
                order = m.FetchAhead(list(wanted))
                self._network.send(self._there[worker], ControlFrame(m.encode(order)))
        fetched = 0
        with contextlib.suppress(queue.Empty):
            while asked:
                item = self._next(deadline_ns)
                self.early.append(item)
                for connection, message in _messages(item):
                    if isinstance(message, m.FetchedAhead) and connection in asked:
                        fetched += message.fetched_bytes
                        asked.discard(connection)
                asked -= set(_lost(item))
        return fetched

    def _next(self, deadline_ns: int) -> InboxItem:
        return self._inbox.get(timeout=max(0.0, (deadline_ns - now_ns()) / 1e9))


def _messages(item: InboxItem) -> Iterator[tuple[ConnectionId, object]]:
    for event in item if isinstance(item, list) else ():
        if isinstance(event, Received) and isinstance(event.frame, ControlFrame):
            with contextlib.suppress(msgspec.DecodeError):
                yield event.connection, m.decode_for_coordinator(event.frame.body)


def _lost(item: InboxItem) -> Iterator[ConnectionId]:
    for event in item if isinstance(item, list) else ():
        if isinstance(event, Disconnected):
            yield event.connection
