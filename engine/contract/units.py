"""Durations and sizes in users' spelling, turned into integer nanoseconds and bytes.

Users write "500ms" and "64MiB"; everything below the API counts in `int`. Text is computed with
`Fraction`, since a float would make "0.1s" differ from 100 000 000 ns. A bare number is seconds for
a duration and bytes for a size; a `timedelta` is a duration.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction

from .errors import UserError

#: "500ms", a number of seconds, or a timedelta.
Duration = str | int | float | timedelta

#: "64MiB", or a number of bytes.
Size = str | int

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
#: A hundred years; 64 bits of nanoseconds hold some more.
_LONGEST_NS = 36_500 * 86_400 * 10**9
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", re.ASCII)


def duration_ns(value: Duration, *, option: str) -> int:
    """Read a duration.

    Args:
        value: "500ms" (ns, us, ms, s, m, h, d), seconds, or a timedelta; not negative.
        option: the option's name, for the error.

    Returns:
        Nanoseconds, rounded to the nearest.

    Raises: UserError, when `value` is not a duration.
    """
    nanoseconds = _read(value, _NANOSECONDS, bare=10**9)
    if nanoseconds is None:
        raise UserError(
            f"{option}={value!r} is not a duration; "
            "write '500ms', '10s', '5m', a number of seconds or a timedelta"
        )
    if nanoseconds > _LONGEST_NS:
        raise UserError(f"{option}={value!r} is too long; write at most '36500d', or none")
    return nanoseconds


def size_bytes(value: Size, *, option: str) -> int:
    """Read a size.

    Args:
        value: "64MiB" (B, KiB, MiB, GiB, TiB, or decimal kB, MB, GB) or a number of bytes; not
            negative.
        option: the option's name, for the error.

    Raises: UserError, when `value` is not a size.
    """
    # `float` is refused here and taken by durations: half a byte is a slip, half a second is not.
    size = None if isinstance(value, float | timedelta) else _read(value, _BYTES, bare=1)
    if size is None:
        raise UserError(
            f"{option}={value!r} is not a size; write '64MiB', '256KiB' or a number of bytes"
        )
    return size


def _read(value: object, units: dict[str, int], *, bare: int) -> int | None:
    """Return the value in the smallest unit, or None if it cannot be read; `bare` is the unit of a
    plain number.
    """
    match value:
        case bool():
            return None
        case timedelta():
            amount = Fraction(value // timedelta(microseconds=1), 10**6) * bare
        case int() | float() if math.isfinite(value):
            amount = Fraction(value) * bare
        case str() if (found := _AMOUNT.fullmatch(value)) and found[2] in units:
            amount = Fraction(found[1]) * units[found[2]]
        case _:
            return None
    return round(amount) if amount >= 0 else None
