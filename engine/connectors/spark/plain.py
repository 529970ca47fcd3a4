"""Partitions and commit messages of Python data sources as plain data, never as pickles.

    {"class": "RangePartition", "fields": {"start": 0, "end": 10}}

A checkpoint can be written by whoever can write to its folder, so a class is looked up only where
the data source itself finds it: in its module, or in the globals of its methods. Values are JSON,
and tagged where JSON has no word: {"__tuple": [...]}, {"__bytes": "..."}.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from types import FunctionType
from typing import Any, TypeVar

from ...contract.errors import HeadraceError

_T = TypeVar("_T")

_TIMES: dict[str, Any] = {"date": dt.date, "datetime": dt.datetime, "time": dt.time}
_SCALARS = (str, int, float, bool)


def to_plain(value: object, what: str) -> str:
    """Return an object's class and fields as text. Raises: HeadraceError, with `what`."""
    fields = getattr(value, "__dict__", None)
    if fields is None:
        raise HeadraceError(f"{what}: {type(value).__name__} keeps its fields in no __dict__")
    plain = {name: _coded(field, f"{what}: field {name!r}") for name, field in fields.items()}
    name = type(value).__qualname__.rpartition("<locals>.")[2]
    return json.dumps({"class": name, "fields": plain})


def from_plain(text: str, base: type[_T], users: object, what: str) -> _T:
    """Make the object anew, without calling its constructor.

    Args:
        base: the class that it must derive from, or be.
        users: the object of the data source that makes such objects.

    Raises: HeadraceError, with `what`.
    """
    stored = json.loads(text)
    found = _class(stored["class"], base, type(users))
    if found is None:
        raise HeadraceError(
            f"{what}: {type(users).__module__} has no {base.__name__} named {stored['class']!r}"
        )
    made: _T = found.__new__(found)
    made.__dict__.update({name: _decoded(field) for name, field in stored["fields"].items()})
    return made


def _class(name: str, base: type[_T], users: type) -> type[_T] | None:
    """Return a class by its qualified name."""
    if name == base.__qualname__:
        return base
    for known in _names_of(users):
        found: Any = known.get(name.split(".")[0])
        for part in name.split(".")[1:]:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, base):
            return found
    return None


def _names_of(users: type) -> list[Mapping[str, Any]]:
    """Names that the class's methods see: those of its module, and of each base class's."""
    functions = [f for c in users.__mro__ for f in vars(c).values() if isinstance(f, FunctionType)]
    # A class that was shipped by value has no module here; its methods have brought their globals.
    closures = [
        dict(zip(f.__code__.co_freevars, map(_content, f.__closure__ or ()), strict=False))
        for f in functions
    ]
    return [*(f.__globals__ for f in functions), *closures]


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _coded(value: object, what: str) -> object:
    if value is None or type(value) in _SCALARS:
        return value
    if type(value) is list:
        return [_coded(item, what) for item in value]
    if type(value) is tuple:
        return {"__tuple": [_coded(item, what) for item in value]}
    if type(value) is bytes:
        return {"__bytes": base64.b64encode(value).decode()}
    if type(value) is Decimal:
        return {"__decimal": str(value)}
    if type(value) in _TIMES.values():
        return {f"__{type(value).__name__}": value.isoformat()}  # type: ignore[attr-defined]
    if type(value) is dict and all(type(k) is str and not k.startswith("__") for k in value):
        return {key: _coded(item, what) for key, item in value.items()}
    raise HeadraceError(
        f"{what} is a {type(value).__name__}, which no checkpoint holds: use numbers, text, bytes,"
        " times, and lists, tuples or dicts of them"
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items()), ("", ""))
    if tag == "__tuple":
        return tuple(_decoded(item) for item in content)
    if tag == "__bytes":
        return base64.b64decode(content)
    if tag == "__decimal":
        return Decimal(content)
    if tag.removeprefix("__") in _TIMES and tag.startswith("__"):
        return _TIMES[tag.removeprefix("__")].fromisoformat(content)
    return {key: _decoded(item) for key, item in value.items()}
