"""The keyed count: its arms, and the check of its answer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.bench.count import KEYS, Arm, Keys, correct, expected

RECORDS = 20 * KEYS


@pytest.mark.parametrize("keys", ["numbers", "text"])
def test_three_of_ten_records_have_the_hot_key(keys: Keys) -> None:
    counts, totals = expected(Arm(RECORDS, keys, skewed=True))
    assert counts.sum() == RECORDS
    assert totals.sum() == RECORDS * (RECORDS - 1) // 2
    assert counts[0] / RECORDS == pytest.approx(0.3, abs=0.001)
    assert counts[1:].min() == counts[1:].max() == 14


def table(arm: Arm, keys: list[str], n: list[int], total: list[int]) -> pa.Table:
    return pa.table({arm.column: keys, "n": n, "total": total})


def test_an_answer_is_right_only_with_every_key_and_its_last_change() -> None:
    counts, totals = np.zeros(KEYS, dtype=np.int64), np.zeros(KEYS, dtype=np.int64)
    counts[[2, 3]], totals[[2, 3]] = [5, 6], [50, 60]
    two, three = "customer-0000002", "customer-0000003"
    final = Arm(11, "text")
    assert correct(final, table(final, [two, three], [5, 6], [50, 60]), counts, totals)
    assert not correct(final, table(final, [two], [5], [50]), counts, totals)
    assert not correct(final, table(final, [two, three], [5, 7], [50, 60]), counts, totals)
    twice = table(final, [two, three, three], [5, 5, 6], [50, 44, 60])
    assert not correct(final, twice, counts, totals)
    assert correct(Arm(11, "text", emit="changes"), twice, counts, totals)
