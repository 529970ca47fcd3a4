"""Arrow tables of the states in a database, made from its entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from ...contract.operators import RestoredState, StateKind, StateLayout
from ..tables import KEY_GROUP
from .codecs import KeyCodec
from .values import value_codec


def tables_of(
    layouts: Sequence[StateLayout],
    entries: Iterable[list[tuple[bytes, bytes]]],
    max_parallelism: int,
) -> list[RestoredState]:
    """Make the table of each state from the entries of a database, in the order of their keys.

    Raises: KeyError for an entry of another state.
    """
    batches: dict[str, list[pa.RecordBatch]] = {layout.name: [] for layout in layouts}
    by_name = {layout.name: _Decoder(layout, max_parallelism) for layout in layouts}
    for some in entries:
        found: dict[str, list[tuple[bytes, bytes]]] = {}
        for key, value in some:
            found.setdefault(key[3 : 3 + key[2]].decode(), []).append((key, value))
        for name, pairs in found.items():
            batches[name].append(by_name[name].batch(pairs))
    return [
        RestoredState(
            name, StateKind.KEYED, pa.Table.from_batches(batches[name], by_name[name].schema)
        )
        for name in batches
    ]


class _Decoder:
    """Rows of one state."""

    def __init__(self, layout: StateLayout, max_parallelism: int) -> None:
        fields = list(layout.schema)
        self.schema = pa.schema([KEY_GROUP, *fields])
        self._keys = KeyCodec(layout.name, fields[: layout.keys], max_parallelism)
        self._values = value_codec(fields[layout.keys :])

    def batch(self, pairs: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        keys = [key for key, _ in pairs]
        groups = np.frombuffer(b"".join(key[:2] for key in keys), ">u2").astype(np.uint16)
        columns = self._keys.decode(keys) + self._values.decode([value for _, value in pairs])
        return pa.RecordBatch.from_arrays([pa.array(groups), *columns], schema=self.schema)
