"""A batch DataFrame as a source: staged once as Arrow files when the job starts, then read like
files.

Spark runs the DataFrame once for a job, however often workers or the driver die. A driver that dies
while Spark stages begins anew, and one that dies before the first checkpoint finds the staged
records, unless the DataFrame's plan has changed. From the first checkpoint on the state names all
files, so that a DataFrame whose records differ each time (`rand()`) is read once all the same.

Staged records go when the job has finished, unless the user named the place.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame

from ...contract.connectors import PreparedSource, SourceRun
from ...contract.errors import UserError
from ..files import FileReader
from ..filesystem import FileInfo, Location, locate
from .staging import StagedFrame, fingerprint_of, remove_staged, scan_of, stage, staged

_MANIFEST = "staged.json"


class DataFrameSource(StagedFrame):
    """Records of a batch DataFrame."""

    def __init__(self, df: DataFrame, staging: str | None = None) -> None:
        """Describe the source; Spark does nothing before the job starts.

        Raises: UserError, for a streaming DataFrame, and as `StagedFrame`.
        """
        super().__init__(df, "read.dataframe", staging)
        if self.is_streaming:
            raise UserError("read.dataframe takes a batch DataFrame; use read.stream for this one")

    def reader(self) -> FileReader:
        """Make a reader that knows no file but those of its state."""
        return FileReader(scan_of(locate("/", {}), self._schema, [], None))

    def prepare(self, run: SourceRun) -> PreparedSource:
        """Stage the records, unless they are staged or in the restored state."""
        location, removes = self.place(run)
        files = [] if run.restored else self._staged(location, anew=run.fresh)
        reader = partial(FileReader, scan_of(location, self._schema, files, None))

        def end(finished: bool) -> None:
            if removes and (finished or not run.folder):
                remove_staged(location)

        return PreparedSource(reader, end=end)

    def _staged(self, location: Location, *, anew: bool) -> list[FileInfo]:
        fingerprint = fingerprint_of(self.frame)
        manifest = None if anew else staged(location, _MANIFEST)
        if manifest is None or manifest.fingerprint != fingerprint:
            # What a driver left that died meanwhile, or what the user begins anew.
            remove_staged(location)
            manifest = stage(self.frame, self._schema, location, _MANIFEST, fingerprint=fingerprint)
        return manifest.listing
