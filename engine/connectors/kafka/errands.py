"""Questions to a cluster that a thread asks, so that nobody waits for a broker that is away.

A subtask takes part in checkpoints between two polls of its source, and stops there. A connection
to a broker that is away takes seconds to fail, an answer of one that hangs half a minute, and both
are tried for minutes. So whatever may wait for a broker is an errand: begun by one poll, and looked
after by later ones.

One errand at a time, each in a thread of its own: errands are rare. While one is under way, its
thread alone uses the cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from .cluster import Cluster

T = TypeVar("T")
#: Calls a function, now or in another thread.
Start = Callable[[Callable[[], None]], None]


def in_thread(call: Callable[[], None]) -> None:
    """Call in a thread that does not keep the process alive."""
    threading.Thread(target=call, name="kafka-errand", daemon=True).start()


class Errand(Generic[T]):
    """A question under way."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._answers: list[T] = []
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is a result."""
        return self._over.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait for the result, at most so long."""
        self._over.wait(timeout_s)

    def result(self) -> T:
        """Return the answer of an errand that is over. Raises: what the question has raised."""
        assert self.is_over, "the errand is not over"
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def tell(self, hearer: Callable[[T], None]) -> None:
        """Hand an answer over, if there is one."""
        for answer in self._answers:
            hearer(answer)

    def run(self, question: Callable[[], T]) -> None:
        """Ask. Does not raise."""
        try:
            self._answers.append(question())
        except Exception as error:
            self._error = error

    def end(self) -> None:
        """Let others see the result."""
        self._over.set()


class Errands:
    """Errands with a cluster that nobody else uses."""

    def __init__(self, cluster: Cluster, start: Start = in_thread) -> None:
        self._cluster = cluster
        self._start = start
        self._lock = threading.Lock()
        self._under_way = False
        self._closed = False

    def __str__(self) -> str:
        return str(self._cluster)

    def go(
        self, question: Callable[[Cluster], T], unheard: Callable[[T], None] | None = None
    ) -> Errand[T]:
        """Ask a question; no other may be under way.

        Args:
            unheard: called with an answer that comes after `close`, in place of who asked.
        """
        errand: Errand[T] = Errand()

        def run() -> None:
            errand.run(lambda: question(self._cluster))
            with self._lock:
                self._under_way = False
                closed = self._closed
                errand.end()
            if closed:
                self._cluster.close()
                if unheard is not None:
                    errand.tell(unheard)

        with self._lock:
            assert not self._under_way, "an errand is under way"
            assert not self._closed, "the errands are closed"
            self._under_way = True
        self._start(run)
        return errand

    def close(self) -> None:
        """Close the cluster, now or when the errand under way is over; does not wait."""
        self._cluster.stop_trying()
        with self._lock:
            self._closed = True
            under_way = self._under_way
        if not under_way:
            self._cluster.close()
