"""The batch at which a call of user code failed, kept beside the job's checkpoints.

    JOB/failed/OPERATOR-SUBTASK.arrow   an Arrow IPC file: the latest failure's batch

Another thread writes the file: a failure is reported without waiting for storage, and whatever goes
wrong with the file is only logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait

import pyarrow as pa

from headrace.recovery.layout import failed_path
from headrace.recovery.store import Store

_log = logging.getLogger(__name__)

#: A larger batch is not kept.
_BYTES_MAX = 16 << 20

#: Takes (operator, subtask, batch) and returns the place of the file; empty: nothing is kept.
Keep = Callable[[str, int, pa.RecordBatch], str]


class FailedBatches:
    """Keeps failed batches of one worker. `keep` may be called from any thread, and never fails.

    Args:
        store: the checkpoint directory; None: there is none, and nothing is kept.
        directory: its URL.
    """

    def __init__(self, store: Store | None, directory: str, job: str, writers: Executor) -> None:
        self._store = store
        self._directory = directory.rstrip("/")
        self._job = job
        self._writers = writers
        self._last: Future[None] | None = None

    def keep(self, operator: str, subtask: int, batch: pa.RecordBatch) -> str:
        """See `Keep`. The file appears soon after."""
        store = self._store
        if store is None or batch.nbytes > _BYTES_MAX:
            return ""
        path = failed_path(self._job, operator, subtask)
        try:
            self._last = self._writers.submit(_write, store, path, batch)
        except RuntimeError:  # the worker ends
            return ""
        return f"{self._directory}/{path}"

    def join(self, timeout_s: float) -> None:
        """Wait for the last file, but no longer."""
        if self._last is not None:
            wait([self._last], timeout_s)


def _write(store: Store, path: str, batch: pa.RecordBatch) -> None:
    try:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        store.put(path, sink.getvalue().to_pybytes())
    except Exception as error:
        _log.warning("the failed batch was not kept: %s", error)
