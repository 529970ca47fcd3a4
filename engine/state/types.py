"""Checks of the Python values that users put into declared state.

State has Arrow types, so that any tool can read a checkpoint. The check runs at the write, in the
user's own call: at the checkpoint the origin of a value would be unknown. The stored value equals
the restored value: a float32 is rounded at once, so a restored job computes the results of an
undisturbed job.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

import pyarrow as pa

#: A key as users see it: the value of the key column, or a tuple for several.
Key = Hashable
#: Python object of an Arrow type.
Cell = object

#: Returns the value as it is kept; raises `StateTypeError`. None is a null and passes.
Check = Callable[[Any], Any]
#: Makes a copy that the user may change without changing the state.
Copy = Callable[[Any], Any]


class StateTypeError(TypeError):
    """The type of a value differs from its state's declared type."""


def check(type_: pa.DataType, what: str) -> Check:
    """Make the check of a type; `what` names the state in the error."""
    if pa.types.is_integer(type_):
        return _integer_check(type_, what)
    exact: type | None = None
    if pa.types.is_float64(type_):
        return _float_check(what)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        exact = str
    elif pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        exact = bytes
    elif pa.types.is_boolean(type_):
        exact = bool
    return _arrow_check(type_, what) if exact is None else _exact_check(exact, type_, what)


def copier(type_: pa.DataType) -> Copy:
    """Return a function that copies mutable values of this type before a user gets them."""
    return copy.deepcopy if pa.types.is_nested(type_) else _same


def _same(value: Any) -> Any:
    return value


def _refused(value: object, type_: pa.DataType, what: str) -> StateTypeError:
    text = repr(value)
    shown = text if len(text) <= 100 else text[:100] + "..."
    return StateTypeError(f"{what} holds {type_}, got {type(value).__name__} {shown}")


def _integer_check(type_: pa.DataType, what: str) -> Check:
    signed = pa.types.is_signed_integer(type_)
    low = -(1 << type_.bit_width - 1) if signed else 0
    high = low + (1 << type_.bit_width)

    def integer(value: Any) -> Any:
        if type(value) is int and low <= value < high:
            return value
        if value is None:
            return None
        if type(value) is not int:
            # NumPy's integers are welcome; True is an integer to Python, but hardly to the user.
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise _refused(value, type_, what)
            value = value.__index__()
        if not low <= value < high:
            raise _refused(value, type_, what)
        return value

    return integer


def _float_check(what: str) -> Check:
    def number(value: Any) -> Any:
        if value is None or type(value) is float:
            return value
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            raise _refused(value, pa.float64(), what)
        return float(value)

    return number


def _exact_check(exact: type, type_: pa.DataType, what: str) -> Check:
    def same_type(value: Any) -> Any:
        if value is not None and not isinstance(value, exact):
            raise _refused(value, type_, what)
        return value

    return same_type


def _arrow_check(type_: pa.DataType, what: str) -> Check:
    def converted(value: Any) -> Any:
        try:
            return pa.scalar(value, type_).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _refused(value, type_, what) from error

    return converted
