"""A PySpark Python data source, made without a session: its class, options, schema and rows."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import StructType

from ...contract.errors import HeadraceError, UserError
from ...contract.suggestion import did_you_mean
from .columns import arrow_schema, spark_schema
from .ddl import schema_of

#: Rows that become a batch.
_BATCH_ROWS = 8192
#: Packages in which Spark itself looks for data sources.
_PREFIX = "pyspark_"


@dataclass(frozen=True)
class Hosted:
    """A data source with its options.

    Attributes:
        made_of: the class.
        schema: of its rows, as its readers get it.
    """

    made_of: type[DataSource]
    options: Mapping[str, str]
    schema: StructType

    @property
    def what(self) -> str:
        """How errors call it."""
        return f"data source {self.made_of.name()!r}"

    @property
    def arrow(self) -> pa.Schema:
        """The schema of its batches. Raises: UserError."""
        return arrow_schema(self.schema, self.what)

    def make(self) -> DataSource:
        """Make the data source, as Spark does for each query."""
        return self.made_of(CaseInsensitiveDict(self.options))

    def has(self, method: str) -> bool:
        """The class has this method, not only the base class."""
        return getattr(self.made_of, method, None) is not getattr(DataSource, method, None)

    def ask(self, words: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the data source. Raises: HeadraceError: it cannot `words`."""
        with self._told(words):
            return call(*arguments)

    def telling(self, words: str, rows: Iterable[Any]) -> Iterator[Any]:
        """Pass rows on. Raises: as `ask`."""
        with self._told(words):
            yield from rows

    @contextmanager
    def _told(self, words: str) -> Iterator[None]:
        try:
            yield
        except (HeadraceError, GeneratorExit):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise HeadraceError(f"{self.what} cannot {words}: {reason}") from error

    def batches(self, rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Turn tuples, `Row`s or record batches into batches of the schema.

        Raises: HeadraceError, for rows that do not fit.
        """
        schema, rest = self.arrow, iter(rows)
        for first in islice(rest, 1):
            if isinstance(first, pa.RecordBatch):
                for batch in chain([first], rest):
                    yield self._cast(batch, schema)
                return
            rest = chain([first], rest)
        while some := list(islice(rest, _BATCH_ROWS)):
            yield from self._converted(some, schema)

    def _cast(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return batch.select(schema.names).cast(schema)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise HeadraceError(f"{self.what} gave a batch of another schema: {error}") from error

    def _converted(self, rows: list[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = schema.names
        rows = [tuple(r[n] for n in names) if hasattr(r, "__fields__") else r for r in rows]
        odd = next((row for row in rows if not isinstance(row, (tuple, list))), None)
        if odd is not None:
            raise HeadraceError(
                f"{self.what} gave a {type(odd).__name__}; it must yield tuples or record batches"
            )
        try:
            table = LocalDataToArrowConversion.convert(rows, self.schema, False)
            yield from table.cast(schema).combine_chunks().to_batches()
        except (HeadraceError, MemoryError):
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise HeadraceError(f"{self.what} gave rows that do not fit: {reason}") from error


def hosted(
    source: str | type[DataSource], options: Mapping[str, object], schema: str | None
) -> Hosted:
    """Find a data source, and look up its schema.

    Args:
        source: a class, "module:Class", or the name of one in an installed package `pyspark_...`.
        schema: as DDL text, in place of the source's own.

    Raises: UserError.
    """
    made_of, texts = _class_of(source), _texts(options)
    what = f"data source {made_of.name()!r}"
    found: StructType | str | None = schema
    if found is None:
        try:
            found = made_of(CaseInsensitiveDict(texts)).schema()
        except NotImplementedError:
            raise UserError(f"{what} has no schema of its own; give schema='a int, ...'") from None
        except Exception as error:
            raise UserError(f"{what} gives no schema: {type(error).__name__}: {error}") from error
    columns = schema_of(found, what) if isinstance(found, str) else found
    return Hosted(made_of, texts, columns)


def hosted_sink(
    source: str | type[DataSource], options: Mapping[str, object], schema: pa.Schema
) -> Hosted:
    """Find a data source that is written to; see `hosted`. Raises: UserError."""
    made_of = _class_of(source)
    columns = spark_schema(schema, f"data source {made_of.name()!r}")
    return Hosted(made_of, _texts(options), columns)


def _class_of(source: str | type[DataSource]) -> type[DataSource]:
    made_of = source if isinstance(source, type) else _named(source)
    if not issubclass(made_of, DataSource):
        raise UserError(f"{made_of.__name__} is no pyspark.sql.datasource.DataSource")
    return made_of


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Spark hands all options on as text."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _named(name: str) -> type[Any]:
    module, _, attribute = name.partition(":")
    if attribute:
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(f"data source {name!r} cannot be imported: {error}") from error
        if not inspect.isclass(found):
            raise UserError(f"data source {name!r} is no class")
        return found
    known = {found.name(): found for found in _installed()}
    if name in known:
        return known[name]
    hint = did_you_mean(name, list(known)) if known else "pass its class, or 'module:Class'"
    raise UserError(f"no installed package {_PREFIX}... brings a data source {name!r}; {hint}")


def _installed() -> Iterator[type[DataSource]]:
    """Data sources that Spark would find by name as well."""
    for module in pkgutil.iter_modules():
        if module.name.startswith(_PREFIX):
            found = getattr(importlib.import_module(module.name), "DefaultSource", None)
            if inspect.isclass(found) and issubclass(found, DataSource):
                yield found
