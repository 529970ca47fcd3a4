"""Arrow columns seen as NumPy arrays, and back.

State lives in NumPy arrays: a kernel on NumPy costs a microsecond, an Arrow compute call ten. Arrow
leaves the value under a null arbitrary; here the value is zero, and the validity travels beside the
values.

Integer-like types (integers, booleans, dates, times, timestamps, durations, floats by their bits)
also have a common form, the *word*: an int64, equal exactly when two values are the same key. -0.0
and 0.0 are the same key, and so are all NaNs, as in `headrace.channels.hashing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Values of any fixed-width type; the Arrow type beside the array tells the type.
Values = npt.NDArray[Any]


def is_word_type(type_: pa.DataType) -> bool:
    """Tell whether `words` can express this type."""
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_floating(type_)
        or (pa.types.is_temporal(type_) and not pa.types.is_interval(type_))
    )


def validity(array: pa.Array) -> Mask | None:
    """Return True per non-null row, or None when there is no null."""
    if array.null_count == 0:
        return None
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def values(array: pa.Array) -> Values:
    """View a column of fixed width as NumPy values; temporal values as integers, nulls as zero.

    Read only.
    """
    type_ = array.type
    if pa.types.is_temporal(type_):
        array = array.view(pa.int64() if type_.bit_width == 64 else pa.int32())
    elif pa.types.is_boolean(type_):
        array = array.cast(pa.uint8())
    if array.null_count:
        array = array.fill_null(pa.scalar(0, array.type))
    result: Values = array.to_numpy()
    return result


def words(array: pa.Array) -> Words:
    """Return the word of each row. Read only. Nulls have the word of zero: ask `validity` too."""
    found = values(array)
    if found.dtype.kind == "f":
        # Adding zero turns -0.0 into 0.0.
        numbers = found.astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.int64)
    if found.dtype == np.uint64:
        return found.view(np.int64)
    return found.astype(np.int64, copy=False)


def from_values(found: Values, type_: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """Make the Arrow column of `values`. May share memory: do not write to `found` afterwards."""
    mask = None if valid is None or valid.all() else ~valid
    if pa.types.is_temporal(type_):
        storage = pa.int64() if type_.bit_width == 64 else pa.int32()
        narrow = found.astype(np.int64 if type_.bit_width == 64 else np.int32, copy=False)
        return pa.array(narrow, storage, mask=mask).view(type_)
    if pa.types.is_boolean(type_):
        return pa.array(found.astype(np.bool_), type_, mask=mask)
    return pa.array(found.astype(type_.to_pandas_dtype(), copy=False), type_, mask=mask)


def from_words(found: Words, type_: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """Make the Arrow column of `words`."""
    if pa.types.is_floating(type_):
        return from_values(found.view(np.float64), type_, valid)
    if pa.types.is_uint64(type_):
        return from_values(found.view(np.uint64), type_, valid)
    return from_values(found, type_, valid)
