from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.channels.keygroups import key_groups
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import RestoredState, StateKind
from headrace.engine.state.tables import keyed_table, refuse_unknown, restored_batches

BATCH = pa.record_batch({"k": np.arange(100), "v": np.arange(100) * 2})
TABLE = keyed_table(BATCH, ["k"], 16)


def test_a_keyed_table_is_sorted_by_the_key_group_of_each_row() -> None:
    groups = TABLE["__key_group"].to_pylist()
    assert TABLE.schema.names == ["__key_group", "k", "v"]
    assert groups == sorted(groups)
    rows = TABLE.drop_columns(["__key_group"]).combine_chunks().to_batches()[0]
    assert groups == key_groups(rows, ["k"], 16).tolist()
    assert rows.sort_by("k").equals(BATCH)


def test_restored_rows_lose_the_key_group_only() -> None:
    states = [
        RestoredState("s", StateKind.KEYED, TABLE),
        RestoredState("t", StateKind.KEYED, TABLE),
    ]
    (batch,) = restored_batches(states, "s", BATCH.schema, "op")
    assert batch.sort_by("k").equals(BATCH)


def test_state_of_another_type_is_refused_by_naming_both() -> None:
    states = [RestoredState("s", StateKind.KEYED, TABLE)]
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    with pytest.raises(UserError, match=r"'op'.*v: int64.*v: string"):
        restored_batches(states, "s", schema, "op")


def test_state_that_the_program_does_not_have_is_refused() -> None:
    states = [RestoredState("old", StateKind.KEYED, TABLE)]
    refuse_unknown(states, ["old", "new"], "op")
    with pytest.raises(UserError, match=r"'old'.*only 'new'"):
        refuse_unknown(states, ["new"], "op")
