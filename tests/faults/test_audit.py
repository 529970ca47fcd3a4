"""The judge of the fault tests judges: each kind of damage is seen, and a sound output is not
blamed.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.bench.audit import Verdict, judge

ROWS = 40


def sound() -> list[dict[str, int]]:
    """Forty records of four keys, from two source subtasks."""
    totals, positions, rows = [0] * 4, [0] * 4, []
    for sequence in range(ROWS):
        key = sequence // 2 % 4
        totals[key] += sequence
        positions[key] += 1
        rows.append(
            {"key": key, "sequence": sequence, "position": positions[key], "total": totals[key]}
        )
    return rows


def verdict(rows: list[dict[str, int]]) -> Verdict:
    return judge(pa.Table.from_pylist(rows), ROWS)


def test_a_sound_output_is_exact_in_any_order_of_its_rows() -> None:
    assert verdict(sound()[::-1]).exact


def test_a_lost_record_is_named() -> None:
    found = verdict(sound()[:-1])
    assert (found.lost, found.doubled, found.examples[0]) == (1, 0, ROWS - 1)
    assert not found.exact


def test_a_doubled_record_is_named() -> None:
    found = verdict([*sound(), sound()[7]])
    assert (found.lost, found.doubled, found.examples[0]) == (0, 1, 7)


def test_a_record_that_was_never_sent_is_counted() -> None:
    assert verdict([*sound(), {**sound()[0], "sequence": ROWS}]).foreign == 1


@pytest.mark.parametrize("column", ["position", "total"])
def test_state_from_another_moment_is_seen(column: str) -> None:
    rows = sound()
    rows[20][column] += 1
    assert verdict(rows).misplaced >= 1


def test_two_records_of_one_key_and_source_subtask_in_the_wrong_order_are_seen() -> None:
    rows = sound()
    # Records 0 and 8 are the first and third of key 0, both from subtask 0; the sums are those of
    # the new order.
    key = [row for row in rows if row["key"] == 0]
    order = [8, 1, 0, *(row["sequence"] for row in key[3:])]
    total = 0
    for row, sequence in zip(key, order, strict=True):
        total += sequence
        row["sequence"], row["total"] = sequence, total
    found = verdict(rows)
    assert (found.lost, found.doubled, found.misplaced) == (0, 0, 1)
