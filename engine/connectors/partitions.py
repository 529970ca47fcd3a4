"""Partitions of a folder of files: records with equal values in some columns lie in one folder.

The layout is Hive's, which Spark and pyarrow datasets read: `day=2026-11-23/country=de/`. A value
is text there. A null has a name of its own, and so has an empty text, since Hive's layout cannot
tell the two apart. Characters that a path gives a meaning to are written as `%XX`, as Spark does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..contract.errors import UserError
from ..contract.suggestion import did_you_mean

#: Values of the partition columns as text; None: null.
Values = tuple[str | None, ...]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")


@dataclass(frozen=True, slots=True)
class Partitions:
    """The columns by which files are parted.

    Attributes:
        columns: their names; none: all records lie in one folder.
        kept: the columns are in the files, too.
        units: by column, the unit of time to which its values are cut: "year", "month", "day" or
            "hour". Columns without one are taken whole.
    """

    columns: tuple[str, ...] = ()
    kept: bool = False
    units: tuple[tuple[str, str], ...] = ()

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that cannot part records of `schema`. Raises: UserError."""
        for name in self.columns:
            if schema.get_field_index(name) < 0:
                raise UserError(
                    f"partition_by={name!r}: there is no such column;"
                    f" {did_you_mean(name, schema.names)}"
                )
            if not self.kept and name[:1] in ("_", "."):
                raise UserError(
                    f"partition_by={name!r}: readers pass over folders whose names begin with"
                    f" {name[0]!r}; rename the column"
                )
            type_ = schema.field(name).type
            if name not in dict(self.units) and not _has_text(type_):
                raise UserError(
                    f"partition_by={name!r}: a column of {type_} does not make names of folders;"
                    " take text, whole numbers, true or false, or dates"
                )
        if len(set(self.columns)) != len(self.columns):
            raise UserError(f"partition_by={list(self.columns)!r} names a column twice")
        if not self.kept and len(self.columns) == len(schema):
            raise UserError(
                "partition_by names every column, and no column is left for the files' records"
            )

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Columns of the files' records."""
        if self.kept or not self.columns:
            return schema
        return pa.schema([column for column in schema if column.name not in self.columns])

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        """Part a batch; records keep their order within a partition."""
        if not self.columns:
            yield (), batch
            return
        keys = [self._key(batch, name) for name in self.columns]
        records = batch if self.kept else batch.drop_columns(list(self.columns))
        codes = _codes(keys)
        if (codes == codes[0]).all():
            yield _values(keys, 0), records
            return
        order = np.argsort(codes, kind="stable")
        ordered = records.take(pa.array(order))
        begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            yield _values(keys, int(order[begin])), ordered.slice(begin, end - begin)

    def folder(self, values: Values) -> str:
        """Path of a partition below the folder of files, with a slash at its end; "" for all."""
        return "".join(
            f"{_escaped(name)}={_NULL if not value else _escaped(value)}/"
            for name, value in zip(self.columns, values, strict=True)
        )

    def _key(self, batch: pa.RecordBatch, name: str) -> pa.DictionaryArray:
        column = batch.column(name)
        unit = dict(self.units).get(name)
        if unit is not None:
            column = pc.floor_temporal(column, unit=unit)
        return pc.dictionary_encode(column, null_encoding="encode")


#: All records lie in one folder.
WHOLE = Partitions()


def partitions_by(columns: str | Sequence[str], *, kept: bool = False) -> Partitions:
    """Make partitions of one column or of several, in the order of their folders."""
    return Partitions((columns,) if isinstance(columns, str) else tuple(columns), kept)


def is_folder(path: str) -> bool:
    """Whether a path is one that `Partitions.folder` makes, of any columns."""
    return all(
        re.fullmatch(r"[^/\\.=][^/\\=]*=[^/\\=]+", part) is not None for part in path.split("/")
    )


def _codes(keys: Sequence[pa.DictionaryArray]) -> npt.NDArray[np.int64]:
    """A number for each record, equal for equal values."""
    codes: npt.NDArray[np.int64] = keys[0].indices.to_numpy(zero_copy_only=False).astype(np.int64)
    for key in keys[1:]:
        codes = codes * len(key.dictionary) + key.indices.to_numpy(zero_copy_only=False)
        # Dense again, so that no product of many columns grows beyond 64 bits.
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes


def _values(keys: Sequence[pa.DictionaryArray], row: int) -> Values:
    return tuple(_text(key.dictionary[key.indices[row].as_py()].as_py()) for key in keys)


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _has_text(type_: pa.DataType) -> bool:
    is_of = pa.types
    return bool(
        is_of.is_string(type_)
        or is_of.is_large_string(type_)
        or is_of.is_integer(type_)
        or is_of.is_boolean(type_)
        or is_of.is_date(type_)
    )


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
