"""A small job for a look at a stream: the first records, in threads of this process."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from ..api.stream import Stream
from ..connectors.look import LookSink, Seen
from ..contract.errors import JobFailed
from ..contract.options import Restart
from .handle import JobHandle
from .job import Job

_STEP_S = 0.05


def take(stream: Stream, rows: int) -> pa.Table:
    """Run the stream's operators until `rows` records are there, or its input ends.

    Settings of files and the environment do not count. Raises: UserError; JobFailed at the first
    failure.
    """
    sink = LookSink()
    seen = sink.begin(rows)
    try:
        job = Job("look", stream.write.to(sink, name="look"), restart=Restart(attempts=0))
        _run(job.start_with(job.run_options("threads", parallelism=1)), seen)
        return seen.table(stream.schema)
    finally:
        sink.end()


def _run(handle: JobHandle, seen: Seen) -> None:
    try:
        while not seen.enough.is_set():
            with suppress(TimeoutError):
                handle.wait(_STEP_S)
                return
    finally:
        handle.cancel()
        # Threads have ended when this returns; a failure after the last record is no news.
        if seen.enough.is_set():
            with suppress(JobFailed):
                handle.wait()
