"""Statistics of a data file as Delta's log takes them, from the Parquet footer.

Readers leave out files by them, so a bound may be too wide and never too narrow: times are widened
to milliseconds, long texts and floating-point columns (NaN is above all numbers for some readers)
have none.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pyarrow.parquet as pq

#: As Delta's own writers.
_COLUMNS_MAX = 32
_TEXT_MAX = 32
_MILLISECOND = datetime.timedelta(milliseconds=1)


def statistics(footer: pq.FileMetaData) -> str:
    """Return JSON: the number of records, lowest and highest values and nulls by column."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(min(footer.num_columns, _COLUMNS_MAX)):
        groups = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        found = [group.statistics for group in groups if group.is_stats_set]
        name = footer.schema.column(index).path
        if "." in name or len(found) != len(groups) or not found:
            continue
        if all(each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        bounds = [(each.min, each.max) for each in found if each.has_min_max]
        if len(bounds) == len(found):
            low = _text(min(low for low, _ in bounds), up=False)
            high = _text(max(high for _, high in bounds), up=True)
            if low is not None and high is not None:
                lowest[name], highest[name] = low, high
    told = {
        "numRecords": footer.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }
    return msgspec.json.encode(told).decode()


def _text(value: object, *, up: bool) -> int | str | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case str():
            return value if len(value) <= _TEXT_MAX else None
        case datetime.datetime():
            whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
            if up and whole != value:
                whole += _MILLISECOND
            zone = "" if value.tzinfo is None else "Z"
            return f"{whole.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"
        case datetime.date():
            return value.isoformat()
        case _:
            return None
