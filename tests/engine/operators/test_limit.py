from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.operators.limit import LimitOperator


def rows_of(operator: LimitOperator, count: int) -> int:
    batch = pa.record_batch({"n": list(range(count))})
    return sum(out.num_rows for out in operator.process(batch, 0))


def test_so_many_records_pass_and_a_restore_goes_on_counting() -> None:
    operator = LimitOperator(5)
    operator.open(OperatorContext("job", "limit", 0, 1, 16, 1))
    assert rows_of(operator, 3) == 3
    operator.commit()
    assert rows_of(operator, 3) == 2
    (state,) = operator.snapshot()
    restored = LimitOperator(5)
    restored.restore([RestoredState(state.name, state.kind, state.table())])
    assert [rows_of(restored, 3), rows_of(restored, 3)] == [2, 0]


def test_a_limit_counts_in_one_place() -> None:
    with pytest.raises(AssertionError):
        LimitOperator(5).open(OperatorContext("job", "limit", 0, 2, 16, 1))
