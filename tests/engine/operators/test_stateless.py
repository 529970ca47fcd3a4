from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.contract.operators import RestoredState, StateKind
from headrace.engine.operators.stateless import StatelessOperator


def test_it_keeps_and_emits_nothing_of_its_own() -> None:
    operator = StatelessOperator()
    operator.restore([])
    operator.commit()
    assert list(operator.snapshot()) == []
    assert list(operator.finish()) == []


def test_state_that_is_given_to_it_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="lost"):
        StatelessOperator().restore([RestoredState("lost", StateKind.LIST, pa.table({"a": [1]}))])
