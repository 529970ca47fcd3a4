"""A streaming DataFrame as a source: each micro-batch is staged under its batch id, then read.

    FOLDER/batches/       micro-batches (`batches.py`)
    FOLDER/query/         the checkpoint location of the streaming query
    FOLDER/ended.json     the query has ended by itself: nothing is left, or it failed

Spark runs a micro-batch again after a failure, under the same id; a batch whose manifest is there
is not staged again. So all runs of the job see equal batches, and the offsets of files in the job's
checkpoints say what was read.

The query runs in the driver's session as long as the job runs, and goes on where it was at the next
start. A batch is removed when no checkpoint in the job's folder needs it any more, unless the user
named the place.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from ...contract.connectors import PreparedSource, SourceRun
from ...contract.errors import HeadraceError, JobFailed, UserError
from ...contract.operators import Polled, RestoredState, SourceStatus, StateSnapshot
from .. import durable
from ..files import FileReader, Scan
from ..filesystem import FileInfo, Location, locate
from .batches import Batches, Passed, ReadSoFar, check_read, manifest_name
from .staging import StagedFrame, first_line, remove_staged, scan_of, stage

_QUERY, _ENDED = "query", "ended.json"
#: How often readers look for new batches.
_LOOK_NS = 100_000_000


class StreamReader(FileReader):
    """Reads the files of batches as they become complete, until the query has ended by itself."""

    def __init__(self, scan: Scan, batches: Batches, ended: str) -> None:
        """Read `batches`, the location of the scan. `ended` is the path of the query's end."""
        super().__init__(scan)
        self._batches = batches
        self._ended = ended
        self._is_over = False
        #: Removed batches, whose files are forgotten, by the last look and by the last commit.
        self._passed_seen = self._passed = Passed()

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Refuse files of another place, whose batches have other numbers, and a state that has not
        read all removed batches.

        Raises: JobFailed.
        """
        read = ReadSoFar.of(states)
        for row in read.rows:
            if not row.split.path.startswith(f"{self._batches.root}/"):
                raise JobFailed(
                    f"the checkpoint has read {row.split.path}, and batches are staged in"
                    f" {self._batches.root} now; give staging= the place of then"
                )
        passed = self._batches.passed()
        check_read(read, passed)
        self._passed_seen = self._passed = max(passed, read.passed)
        self._deal([row for row in read.rows if not self._passed.has(row.split.path)])

    def commit(self) -> None:
        """Publish the offsets, without those of removed batches."""
        super().commit()
        if self._passed_seen != self._passed:
            self._passed = self._passed_seen
            self._ledger.forget(lambda split: self._passed.has(split.path))

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the published offsets, and which batches they leave out."""
        return (*super().snapshot(), self._passed.snapshot())

    def poll(self, rows_max: int) -> Polled:
        """Read a batch, or look for more. Raises: JobFailed, when the query has failed."""
        polled = super().poll(rows_max)
        if polled.status is SourceStatus.IDLE and self._is_over:
            return Polled((), SourceStatus.END)
        return polled

    def _look_for_more(self) -> None:
        location = self._scan.location
        # Before the listing: a batch that completes in between must not be lost.
        ended = durable.size_bytes(location, self._ended) is not None
        super()._look_for_more()
        passed = self._batches.passed()
        if passed != self._passed_seen:
            self._passed_seen = passed
            self._known = {path for path in self._known if not passed.has(path)}
        if ended:
            failure = json.loads(location.fs.cat_file(self._ended))["failure"]
            if failure:
                raise JobFailed(f"the streaming query has failed: {failure}")
        self._is_over = ended

    def _is_whole(self, file: FileInfo) -> bool:
        return True  # its manifest is there


class StreamSource(StagedFrame):
    """Records of a streaming DataFrame."""

    def __init__(self, df: DataFrame, follow_ns: int | None, staging: str | None = None) -> None:
        """Describe the source; Spark does nothing before the job starts.

        Args:
            follow_ns: time between two micro-batches; None: what is there now, then the end.

        Raises: UserError, for a batch DataFrame, and as `StagedFrame`.
        """
        super().__init__(df, "read.stream", staging)
        if not self.is_streaming:
            raise UserError("read.stream takes a streaming DataFrame; use read.dataframe for this")
        self._follow_ns = follow_ns

    def reader(self) -> StreamReader:
        """Make a reader without a query, which does not know of any end."""
        return self._reader(locate("/nowhere", {}))

    def prepare(self, run: SourceRun) -> PreparedSource:
        """Find the place; the query starts with the run."""
        location, removes = self.place(run)
        if run.fresh and not run.restored:
            remove_staged(location)
        batches = Batches.below(location)
        if not run.restored and batches.passed() != Passed():
            raise HeadraceError(
                f"read.stream {run.operator!r}: earlier runs have read micro-batches up to"
                f" {batches.passed().batch}, which are removed from {location.root}, and their"
                " checkpoints are not there; begin anew with fresh=True"
            )
        query = _Query(self.frame, self._schema, location, self._follow_ns, run)

        def end(finished: bool) -> None:
            query.stop()
            if removes and not run.folder:
                remove_staged(location)
            elif removes and finished:
                # The query goes on from its own checkpoint if the job has more to do one day.
                batches.remove_all()

        kept = batches.remove_passed if removes else None
        return PreparedSource(
            partial(self._reader, location), begin=query.start, end=end, kept=kept
        )

    def _reader(self, location: Location) -> StreamReader:
        batches = Batches.below(location)
        scan = scan_of(batches, self._schema, [], _LOOK_NS)
        return StreamReader(scan, batches, f"{location.root}/{_ENDED}")


class _Query:
    """The streaming query of one run, which stages micro-batches."""

    def __init__(
        self,
        df: DataFrame,
        schema: pa.Schema,
        location: Location,
        follow_ns: int | None,
        run: SourceRun,
    ) -> None:
        self._df = df
        self._schema = schema
        self._location = location
        self._batches = Batches.below(location)
        self._follow_ns = follow_ns
        self._run = run
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the query. Raises: HeadraceError, when Spark refuses it."""
        durable.make_folder(self._location, self._batches.root)
        durable.remove(self._location, f"{self._location.root}/{_ENDED}")
        query = Location(self._location.fs, f"{self._location.root}/{_QUERY}")
        writer = self._df.writeStream.foreachBatch(self._stage)
        writer = writer.option("checkpointLocation", query.spark_url)
        writer = writer.queryName(f"headrace {self._run.job}: {self._run.operator}")
        if self._follow_ns is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._follow_ns // 1_000_000} milliseconds")
        try:
            self._query = writer.start()
        except (PySparkException, Py4JError) as error:
            raise HeadraceError(f"Spark cannot start the query: {first_line(error)}") from error
        threading.Thread(target=self._await_end, name="streaming-query", daemon=True).start()

    def stop(self) -> None:
        """Stop the query; the next start repeats the micro-batch that it is in."""
        self._stopping.set()
        if self._query is not None:
            with suppress(PySparkException, Py4JError):  # the session may be gone
                self._query.stop()

    def _stage(self, batch: DataFrame, number: int) -> None:
        if not self._batches.is_staged(number):
            stage(batch, self._schema, self._batches, manifest_name(number))

    def _await_end(self) -> None:
        """Tell the readers when the query ends by itself."""
        assert self._query is not None, "started"
        failure = ""
        try:
            self._query.awaitTermination()
        except Exception as error:
            failure = first_line(error)
        if not self._stopping.is_set():
            content = json.dumps({"failure": failure}).encode()
            durable.publish(self._location, f"{self._location.root}/{_ENDED}", content)
