"""Spark's DDL strings as schemas, without a session: `"id bigint not null, tags array<string>"`.

PySpark asks a JVM to parse them; a worker has none. A column is NAME TYPE, or NAME: TYPE, with NOT
NULL and COMMENT 'text' behind it; a name may stand in backquotes.

Not here: DEFAULT, GENERATED, COLLATE, intervals and variants.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ...contract.errors import UserError

_PLAIN: dict[str, Callable[[], DataType]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
    "void": NullType,
}
_DECIMALS = ("decimal", "dec", "numeric")
_LENGTHS = ("varchar", "char", "character")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([\w.\-]+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")


def schema_of(ddl: str, what: str) -> StructType:
    """Parse the columns of a table, with or without `struct<...>` around them.

    Raises: UserError, with `what`, and the place in the text.
    """
    return _Parser(ddl, what).table()


class _Parser:
    """A descent over the tokens of one text."""

    def __init__(self, text: str, what: str) -> None:
        self._text = text
        self._what = what
        self._tokens = self._tokenise()
        self._next = 0

    def table(self) -> StructType:
        """Parse the whole text."""
        if [token.lower() for token, _ in self._tokens[:2]] == ["struct", "<"]:
            table = self._type()
        else:
            table = StructType(self._fields(end=""))
        if self._peek():
            raise self._error("the end")
        assert isinstance(table, StructType), "a struct has been parsed"
        return table

    def _tokenise(self) -> list[tuple[str, int]]:
        tokens, place = [], 0
        text = self._text.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise self._refused(place, "a name, a type or a sign")
            tokens.append((match.group().strip(), match.end()))
            place = match.end()
        return tokens

    def _fields(self, end: str) -> list[StructField]:
        fields = [self._field()]
        while self._peek() == ",":
            self._take()
            fields.append(self._field())
        if end:
            self._expect(end)
        return fields

    def _field(self) -> StructField:
        name = self._take()
        if not name or name in "<>(),:" or name[0] == "'":
            self._next -= 1
            raise self._error("a column's name")
        if name[0] == "`":
            name = name[1:-1].replace("``", "`")
        if self._peek() == ":":
            self._take()
        type_ = self._type()
        nullable = True
        if self._peek().lower() == "not":
            self._take()
            self._expect("null")
            nullable = False
        metadata = {}
        if self._peek().lower() == "comment":
            self._take()
            metadata = {"comment": self._take()[1:-1]}
        return StructField(name, type_, nullable, metadata)

    def _type(self) -> DataType:
        word = self._take().lower()
        if word in _PLAIN:
            return _PLAIN[word]()
        if word in _DECIMALS:
            return DecimalType(*self._numbers((10, 0)))
        if word in _LENGTHS:
            self._numbers((0,))
            return StringType()
        if word == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return ArrayType(element)
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return MapType(key, value)
        if word == "struct":
            self._expect("<")
            return StructType(self._fields(end=">"))
        self._next -= 1
        raise self._error("a type such as bigint or array<string>")

    def _numbers(self, usual: tuple[int, ...]) -> tuple[int, ...]:
        """Parse `(10, 2)`, if it is there."""
        if self._peek() != "(":
            return usual
        self._take()
        found = [self._number()]
        while self._peek() == ",":
            self._take()
            found.append(self._number())
        self._expect(")")
        return (*found, *usual[len(found) :])[: len(usual)]

    def _number(self) -> int:
        word = self._take()
        if not word.isdecimal():
            self._next -= 1
            raise self._error("a number")
        return int(word)

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, word: str) -> None:
        if self._take().lower() != word:
            self._next -= 1
            raise self._error(repr(word))

    def _error(self, expected: str) -> UserError:
        before = self._tokens[self._next - 1][1] if 0 < self._next <= len(self._tokens) else 0
        return self._refused(before, expected)

    def _refused(self, place: int, expected: str) -> UserError:
        rest = self._text[place:].strip()[:30]
        found = f"{rest!r} stands there" if rest else "the text ends"
        return UserError(f"{self._what}: the schema {self._text!r} needs {expected} where {found}")
