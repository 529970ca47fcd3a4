from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.state.keys import KeySlots

SCHEMA = pa.schema([("i", pa.int32()), ("s", pa.string()), ("f", pa.float64())])
ROW = st.tuples(
    st.none() | st.integers(-2, 2),
    st.none() | st.sampled_from(["", "a", "b", "é"]),
    st.none() | st.sampled_from([0.0, 1.5]),
)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@given(
    st.lists(st.lists(ROW, min_size=1, max_size=30), max_size=6),
    st.sampled_from([["i"], ["s"], ["i", "s"], ["s", "f"], ["f", "i", "s"]]),
)
def test_slots_follow_a_dictionary_of_keys(
    batches: list[list[tuple[Any, ...]]], names: list[str]
) -> None:
    keys = KeySlots(SCHEMA, names)
    model: dict[tuple[Any, ...], int] = {}
    for rows in batches:
        batch = batch_of(rows)
        found = keys.lookup(batch).tolist()
        wanted = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        for key, slot in zip(wanted, found, strict=True):
            assert model.setdefault(key, slot) == slot
    assert keys.count == len(model)
    columns = [column.to_pylist() for column in keys.columns()]
    assert {key: slot for slot, key in enumerate(zip(*columns, strict=True))} == model


def test_frozen_keys_are_the_committed_ones_however_many_come_later() -> None:
    for names in (["i"], ["s"], ["i", "s"]):
        keys = KeySlots(SCHEMA, names)
        keys.lookup(batch_of([(1, "a", 0.0), (None, None, 0.0)]))
        keys.commit()
        keys.lookup(batch_of([(2, "b", 0.0)]))
        frozen = keys.freeze()
        keys.lookup(batch_of([(i, str(i), 0.0) for i in range(3000)]))
        expected = {"i": [1, None], "s": ["a", None]}
        assert [column.to_pylist() for column in frozen()] == [expected[name] for name in names]


def test_a_dictionary_column_is_the_same_key_as_a_plain_one() -> None:
    encoded = pa.array(["a", "b", "a", None]).dictionary_encode()
    keys = KeySlots(pa.schema([("s", encoded.type)]), ["s"])
    slots = keys.lookup(pa.record_batch({"s": encoded})).tolist()
    again = keys.lookup(pa.record_batch({"s": pa.array(["b", None]).dictionary_encode()})).tolist()
    assert slots[0] == slots[2]
    assert again == [slots[1], slots[3]]
    assert keys.fields[0].type == pa.string()
