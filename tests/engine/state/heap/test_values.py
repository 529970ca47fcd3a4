"""What is committed on the heap: merged by key, looked at in rounds, frozen without copying
what it holds.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.channels.keygroups import key_groups
from headrace.engine.state.backend import ABSENT
from headrace.engine.state.heap.values import HeapValues

SCHEMA = pa.schema([("key", pa.int64()), ("seen", pa.map_(pa.string(), pa.int64()))])


def test_writes_replace_add_and_remove() -> None:
    committed = HeapValues({1: "a", 2: "b"})
    committed.merge({2: "c", 3: "d", 1: ABSENT})
    assert committed == {2: "c", 3: "d"}


def test_a_round_looks_at_every_key_once_though_keys_come_and_go() -> None:
    committed = HeapValues({key: str(key) for key in range(5)})
    first, over = committed.some(2)
    assert (first, over) == ([(0, "0"), (1, "1")], False)
    committed.merge({2: ABSENT, 9: "9"})
    assert committed.some(2) == ([(3, "3")], False)
    assert committed.some(2) == ([(4, "4")], True)
    again, over = committed.some(10)
    assert ([key for key, _ in again], over) == ([0, 1, 3, 4, 9], True)


def test_what_was_frozen_does_not_change_any_more() -> None:
    committed = HeapValues({7: {"x": 1}, 8: {}})
    table = committed.freeze(SCHEMA, 16)
    committed.merge({7: ABSENT, 9: {"y": 2}})
    frozen = table()
    assert dict(zip(frozen["key"].to_pylist(), frozen["seen"].to_pylist(), strict=True)) == {
        7: [("x", 1)],
        8: [],
    }
    keys = frozen.select(["key"]).combine_chunks().to_batches()[0]
    assert frozen["__key_group"].to_pylist() == sorted(key_groups(keys, ["key"], 16).tolist())


def test_nothing_is_a_table_without_rows() -> None:
    assert HeapValues().freeze(SCHEMA, 16)().num_rows == 0
