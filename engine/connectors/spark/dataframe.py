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
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from ...contract.connectors import PreparedSource, SourceRun
from ...contract.errors import UserError
from ..files import FileReader
from ..filesystem import FileInfo, Location, locate
from ..formats import plain_schema
from .columns import arrow_schema
from .staging import fingerprint_of, place_of, remove_staged, scan_of, stage, staged

_MANIFEST = "staged.json"


class DataFrameSource:
    """Records of a batch DataFrame."""

    def __init__(self, df: DataFrame, staging: str | None = None) -> None:
        """Describe the source; Spark does nothing before the job starts.

        Args:
            staging: path or URL of a folder that executors and workers share; None: beside the
                job's checkpoints.

        Raises: UserError, for a streaming DataFrame, or a type without a place in Arrow.
        """
        if df.isStreaming:
            raise UserError("read.dataframe takes a batch DataFrame; use read.stream for this one")
        self._schema = plain_schema(arrow_schema(df.schema, "read.dataframe"))
        self._staging = staging
        self._df: DataFrame | None = df

    def __getstate__(self) -> dict[str, Any]:
        """A worker has no use for the DataFrame, which lives in the driver."""
        return {**self.__dict__, "_df": None}

    @property
    def schema(self) -> pa.Schema:
        """The DataFrame's columns."""
        return self._schema

    def reader(self) -> FileReader:
        """Make a reader that knows no file but those of its state."""
        return FileReader(scan_of(locate("/", {}), self._schema, [], None))

    def prepare(self, run: SourceRun) -> PreparedSource:
        """Stage the records, unless they are staged or in the restored state."""
        assert self._df is not None, "prepared in the driver"
        location, removes = place_of(self._df, self._staging, run, "read.dataframe")
        files = [] if run.restored else self._staged(self._df, location, anew=run.fresh)
        reader = partial(FileReader, scan_of(location, self._schema, files, None))

        def end(finished: bool) -> None:
            if removes and (finished or not run.folder):
                remove_staged(location)

        return PreparedSource(reader, end=end)

    def _staged(self, df: DataFrame, location: Location, *, anew: bool) -> list[FileInfo]:
        fingerprint = fingerprint_of(df)
        manifest = None if anew else staged(location, _MANIFEST)
        if manifest is None or manifest.fingerprint != fingerprint:
            # What a driver left that died meanwhile, or what the user begins anew.
            remove_staged(location)
            manifest = stage(df, self._schema, location, _MANIFEST, fingerprint=fingerprint)
        return manifest.listing
