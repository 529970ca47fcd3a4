"""Whole states as small numbers: equal states have equal numbers, and numbers give states back.

A state is a graph of mutable machines, with two encodings. The *key* tells states apart: it holds
every attribute of every object, without back references, so that sharing between equal parts makes
no difference. The *image* brings the state back, as a graph of its own. Constants (the plan, the
scope, the contents of files) appear in both by name only.

The order of a set depends on its history, so callers build sets anew (`in_order`) where they can;
two numbers for equal states cost only time.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def in_order(items: Iterable[Any]) -> set[Any]:
    """Return a set whose order depends on its items alone."""
    ordered: set[Any] = set()
    ordered.update(sorted(items))
    return ordered


def _constant(name: str) -> Any:
    raise AssertionError(f"constant {name} is looked up by the decoder")


class _Decoder(pickle.Unpickler):
    def __init__(self, image: bytes, constants: dict[str, Any]) -> None:
        super().__init__(io.BytesIO(image))
        self._constants = constants

    def find_class(self, module: str, name: str) -> Any:
        if name == "_constant":
            return self._constants.__getitem__
        return super().find_class(module, name)


class _Reducers(dict[type, Callable[[Any], Any]]):
    """Takes objects apart by class; pickle's own way asks each object for its fields anew."""

    def __init__(self, constants: dict[str, Any], *, whole: bool) -> None:
        super().__init__({type(value): _naming(name) for name, value in constants.items()})
        self._whole = whole

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        found = self[kind] = _reducer(kind, whole=self._whole)
        return found


def _naming(name: str) -> Callable[[Any], Any]:
    return lambda value: (_constant, (name,))


def _reducer(kind: type, *, whole: bool) -> Callable[[Any], Any]:
    """`whole`: the object must come back; otherwise its values are enough, in any shape."""
    if issubclass(kind, type):
        return lambda value: str(value.__qualname__)
    if issubclass(kind, Enum):
        return lambda value: (kind, (value._value_,))
    if issubclass(kind, tuple):
        return lambda value: (kind, tuple(value))
    if kind is deque:
        return lambda value: (deque, (list(value),))
    if is_dataclass(kind) and "__slots__" in kind.__dict__:
        names = [field.name for field in fields(kind)]
        if not whole or kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return lambda value: (kind, tuple([getattr(value, name) for name in names]))
        return lambda value: (
            copyreg.__newobj__,  # type: ignore[attr-defined]
            (kind,),
            (None, {name: getattr(value, name) for name in names}),
        )
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    if plain and not whole and kind.__dictoffset__ and not hasattr(kind, "__slots__"):
        return lambda value: (kind, (value.__dict__,))
    return lambda value: value.__reduce_ex__(5)


class States:
    """Numbers for states of a kind.

    `constants`: {name: immutable object that every state refers to}, of types of their own.
    """

    def __init__(self, constants: dict[str, Any]) -> None:
        self._constants = constants
        self._tables = {whole: _Reducers(constants, whole=whole) for whole in (False, True)}
        self._numbers: dict[bytes, int] = {}
        self._images: list[bytes] = []

    def __len__(self) -> int:
        return len(self._images)

    def number(self, state: Any) -> int:
        """The state's number."""
        key = hashlib.blake2b(self._encoded(state, whole=False), digest_size=16).digest()
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._images)
            self._images.append(self._encoded(state, whole=True))
        return found

    def state(self, number: int) -> Any:
        """A copy of the state, to be changed at will."""
        return _Decoder(self._images[number], self._constants).load()

    def _encoded(self, state: Any, *, whole: bool) -> bytes:
        to = io.BytesIO()
        encoder = pickle.Pickler(to, protocol=5)
        encoder.dispatch_table = self._tables[whole]
        encoder.fast = not whole
        encoder.dump(state)
        return to.getvalue()


class Values:
    """Numbers for hashable values."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def number(self, key: Hashable, value: Any = None) -> int:
        """Return the number of `key`, and keep `value`, or the key itself, under the number."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(key if value is None else value)
        return found
