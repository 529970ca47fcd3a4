"""The file formats as the file source sees them, and the schema rules of all formats.

The schema of a source is either *given* by the user, and selects and casts columns of each file, or
*inferred* from the first file, and then every other file must have exactly its columns: a column
that only some files have is a mistake to report, not data to drop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headrace.channels import schemas

from ..contract.plain import plain_array
from .filesystem import Location, UnreadableFile
from .splits import Split


@dataclass(frozen=True, slots=True)
class Expected:
    """The form of a source's batches.

    Attributes:
        schema: columns, without the column that a source may add for the path.
        given: by the user; else inferred.
    """

    schema: pa.Schema
    given: bool

    def check(self, path: str, found: pa.Schema) -> None:
        """Compare a file's columns with the expected ones. Raises: UnreadableFile."""
        for column in self.schema:
            self._check_column(path, found, column)
        extra = [name for name in found.names if name not in self.schema.names]
        if extra and not self.given:
            raise UnreadableFile(
                path,
                f"column {extra[0]!r} is not in the first file; give schema= to choose columns",
            )

    def select(self, path: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Bring a batch of a checked file to the schema.

        Raises: UnreadableFile, if a value does not fit its type.
        """
        arrays = []
        for column in self.schema:
            array = plain_array(batch.column(column.name))
            try:
                arrays.append(array if array.type == column.type else array.cast(column.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UnreadableFile(path, f"column {column.name!r}: {error}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _check_column(self, path: str, found: pa.Schema, column: pa.Field) -> None:
        count = len(found.get_all_field_indices(column.name))
        if count != 1:
            reason = f"has no column {column.name!r}" if not count else f"has {column.name!r} twice"
            raise UnreadableFile(path, f"{reason}; its columns are {', '.join(found.names)}")
        type_found = plain_type(found.field(column.name).type)
        if not self.given and type_found != column.type:
            raise UnreadableFile(
                path,
                f"column {column.name!r} is {type_found}, but {column.type} in the first file; "
                "give schema= to cast",
            )


class Cursor(Protocol):
    """A split that is being read."""

    @property
    def offset(self) -> int:
        """Where the next record is (see `Progress.offset`)."""
        ...

    def read(self, rows_max: int) -> pa.RecordBatch | None:
        """Return the next records, perhaps none; None when nothing is left for now.

        Raises: UnreadableFile.
        """
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class Format(Protocol):
    """A file format. A frozen, picklable value."""

    @property
    def in_bytes(self) -> bool:
        """Offsets are bytes of the file, and a file may be read while it is still being written."""
        ...

    @property
    def can_cut(self) -> bool:
        """A file can be read in several ranges."""
        ...

    def infer(self, location: Location, path: str) -> pa.Schema:
        """Read a file's schema. Raises: UnreadableFile."""
        ...

    def check(self, location: Location, path: str, expected: Expected) -> None:
        """Compare a file's schema with the expected one, if it has one. Raises: UnreadableFile."""
        ...

    def open(
        self,
        location: Location,
        split: Split,
        *,
        offset: int,
        expected: Expected,
        growing: bool,
        size_bytes_min: int,
    ) -> Cursor:
        """Begin to read at `offset` of a file that was listed with `size_bytes_min` bytes.

        Raises: UnreadableFile, here or at the end of a file that has become shorter.
        """
        ...


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of values in streams: a dictionary's values, views and runs plain, text for a
    column of nulls alone.
    """
    if pa.types.is_dictionary(type_):
        return type_.value_type
    return pa.string() if pa.types.is_null(type_) else schemas.plain_type(type_)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns in plain types, nullable and without metadata: the common form of files of
    one kind.
    """
    return pa.schema([(column.name, plain_type(column.type)) for column in schema])
