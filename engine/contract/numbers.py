"""Numbers for people: rates, sizes and times in few characters."""

from __future__ import annotations

_MIB = 1024 * 1024


def rate(per_s: float) -> str:
    """Records per second: "0", "950", "12.3k", "1.2M"."""
    for limit, factor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if per_s >= limit:
            return f"{per_s / factor:.1f}{unit}"
    return f"{per_s:.0f}"


def mebibytes(size_bytes: int) -> str:
    """Return queued data in MiB, the same unit throughout a column: "0.0", "12.4"."""
    return f"{size_bytes / _MIB:.1f}"


def size(size_bytes: int) -> str:
    """Return a size in the unit that fits: "512 B", "3.1 KiB", "12.4 MiB"."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    amount = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def seconds(ns: int) -> str:
    """A time: "38 ms", "1.4 s", "125 s"."""
    if ns < 1_000_000_000:
        return f"{ns / 1e6:.0f} ms"
    return f"{ns / 1e9:.1f} s" if ns < 100_000_000_000 else f"{ns / 1e9:.0f} s"


def counted(number: int, noun: str) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def milliseconds(ns: int) -> float:
    """For JSON: milliseconds, rounded to microseconds."""
    return round(ns / 1e6, 3)
