from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.hashing import hash_rows
from headrace.channels.keygroups import (
    MAX_PARALLELISM_LIMIT,
    groups_of_hashes,
    key_group_range,
    key_groups,
    owner,
    owners,
)


def assert_ranges_tile_and_agree_with_owner(max_parallelism: int, parallelism: int) -> None:
    end = 0
    table = owners(max_parallelism, parallelism).tolist()
    for index in range(parallelism):
        groups = key_group_range(max_parallelism, parallelism, index)
        assert groups.start == end
        assert len(groups) in (max_parallelism // parallelism, -(-max_parallelism // parallelism))
        end = groups.stop
        for group in {groups.start, groups.stop - 1}:
            assert owner(group, max_parallelism, parallelism) == index
        assert table[groups.start : groups.stop] == [index] * len(groups)
    assert end == max_parallelism


def test_ranges_tile_and_agree_with_owner_for_every_small_job() -> None:
    for max_parallelism in range(1, 65):
        for parallelism in range(1, max_parallelism + 1):
            assert_ranges_tile_and_agree_with_owner(max_parallelism, parallelism)


@given(st.data())
def test_ranges_tile_and_agree_with_owner(data: st.DataObject) -> None:
    max_parallelism = data.draw(st.integers(1, MAX_PARALLELISM_LIMIT))
    parallelism = data.draw(st.integers(1, min(max_parallelism, 500)))
    assert_ranges_tile_and_agree_with_owner(max_parallelism, parallelism)


def test_ranges_and_owners_are_those_of_flink() -> None:
    # computeKeyGroupRangeForOperatorIndex(128, 3, i) and computeOperatorIndexForKeyGroup.
    assert [key_group_range(128, 3, index) for index in range(3)] == [
        range(43),
        range(43, 86),
        range(86, 128),
    ]
    assert owner(42, 128, 3) == 0
    assert owner(43, 128, 3) == 1


@given(
    st.lists(st.integers(0, (1 << 64) - 1)),
    st.integers(1, MAX_PARALLELISM_LIMIT),
)
def test_groups_are_the_upper_half_of_the_hash_scaled(hashes: list[int], limit: int) -> None:
    groups = groups_of_hashes(np.array(hashes, np.uint64), limit)
    assert groups.dtype == np.uint16
    assert groups.tolist() == [((value >> 32) * limit) >> 32 for value in hashes]


def test_the_extreme_hashes_fall_into_the_first_and_the_last_group() -> None:
    hashes = np.array([0, (1 << 64) - 1], np.uint64)
    assert groups_of_hashes(hashes, 1).tolist() == [0, 0]
    assert groups_of_hashes(hashes, 128).tolist() == [0, 127]
    assert groups_of_hashes(hashes, MAX_PARALLELISM_LIMIT).tolist() == [0, 32767]


def test_key_groups_of_rows_are_those_of_their_hashes() -> None:
    batch = pa.RecordBatch.from_pydict({"k": [1, 2, None], "s": ["a", "b", "c"]})
    hashes = hash_rows(batch, ["s", "k"])
    expected = groups_of_hashes(hashes, 100).tolist()
    assert key_groups(batch, ["s", "k"], 100).tolist() == expected
    assert key_groups(batch.slice(0, 0), ["s", "k"], 100).tolist() == []


def test_the_groups_in_the_document_are_those_of_the_code() -> None:
    document = Path(__file__).parents[2] / "docs" / "key-hash.md"
    rows = re.findall(
        r"`0x([0-9a-f]{16})` \| (\d+) \| (\d+) \|", document.read_text(encoding="utf-8")
    )
    assert len(rows) > 20
    hashes = np.array([int(row[0], 16) for row in rows], np.uint64)
    assert groups_of_hashes(hashes, 128).tolist() == [int(row[1]) for row in rows]
    assert groups_of_hashes(hashes, 32768).tolist() == [int(row[2]) for row in rows]


@pytest.mark.parametrize("max_parallelism", [0, -1, MAX_PARALLELISM_LIMIT + 1])
def test_max_parallelism_has_limits(max_parallelism: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 32768, not {max_parallelism}"):
        groups_of_hashes(np.zeros(1, np.uint64), max_parallelism)


@pytest.mark.parametrize("parallelism", [0, 9])
def test_every_subtask_owns_at_least_one_group(parallelism: int) -> None:
    with pytest.raises(ValueError, match=f"max parallelism 8, not {parallelism}"):
        key_group_range(8, parallelism, 0)
    with pytest.raises(ValueError, match=f"max parallelism 8, not {parallelism}"):
        owners(8, parallelism)
