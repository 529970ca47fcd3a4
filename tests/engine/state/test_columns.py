from __future__ import annotations

import numpy as np

from headrace.engine.state.columns import StateColumn

INT64 = np.dtype(np.int64)


def test_a_snapshot_sees_only_what_was_committed() -> None:
    column = StateColumn(INT64, 7)
    slots = np.array([1, 1, 2])
    np.add.at(column.working, slots, 10)
    assert column.stage(slots).tolist() == [27, 27, 17]
    assert column.freeze(3).tolist() == [7, 7, 7]
    column.commit()
    assert column.freeze(3).tolist() == [7, 27, 17]


def test_what_was_frozen_does_not_change() -> None:
    column = StateColumn(INT64, 0)
    frozen = column.freeze(2)
    column.load(np.array([0, 1]), np.array([5, 6]))
    assert frozen.tolist() == [0, 0]
    assert column.freeze(2).tolist() == [5, 6]


def test_growth_keeps_committed_and_working_values_apart() -> None:
    column = StateColumn(INT64, 3)
    column.load(np.array([0]), np.array([9]))
    column.working[1] = 8
    column.grow(5000)
    assert column.working[:3].tolist() == [9, 8, 3]
    assert column.freeze(5000)[[0, 1, 4999]].tolist() == [9, 3, 3]
