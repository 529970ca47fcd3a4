"""Offsets of complete checkpoints, committed to a consumer group, for others to see how far we are.

A thread of its own, because a coordinator that is away must not hold the source up. Only the newest
offsets count; a commit that fails is logged, and the next checkpoint's takes its place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from ...contract.errors import HeadraceError
from ...contract.operators import StateSnapshot
from .cluster import Cluster
from .connection import BrokerLost
from .offsets import commit_offsets
from .progress import offsets_of

_log = logging.getLogger(__name__)
#: How long one commit is tried.
PATIENCE_S = 10.0
#: How long the end of a source waits for the last one.
_CLOSE_S = 2.0


class GroupCommits:
    """Commits of one subtask's offsets to a group; owns its cluster."""

    def __init__(self, cluster: Cluster, group: str, *, patience_s: float = PATIENCE_S) -> None:
        self._cluster = cluster
        self._group = group
        self._patience_s = patience_s
        self._changed = threading.Condition()
        #: What to commit next; None: nothing.
        self._next: Sequence[StateSnapshot] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"kafka-group-{group}", daemon=True)
        self._thread.start()

    def commit(self, states: Sequence[StateSnapshot]) -> None:
        """Commit these offsets soon, in place of any that wait."""
        with self._changed:
            self._next = states
            self._changed.notify()

    def close(self) -> None:
        """Commit what waits, for a moment, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=_CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next is not None)
                states, self._next = self._next, None
            if states is None:
                self._cluster.close()
                return
            offsets = offsets_of(states)
            if not offsets:
                continue
            try:
                commit_offsets(self._cluster, self._group, offsets, patience_s=self._patience_s)
            except (HeadraceError, BrokerLost) as error:
                _log.warning("offsets are not committed to group %s: %s", self._group, error)
