"""Forward: subtask i to subtask i."""

from __future__ import annotations

import pytest

from headrace.channels.partitioners.forward import Forward

from .batches import batch_of


def test_forward_connects_equal_indexes_only() -> None:
    assert Forward().consumers(2, 4, 4) == [2]
    batch = batch_of(0, 5)
    assert Forward().open(2, 4, 4, 0).split(batch) == [(0, batch)]
    with pytest.raises(ValueError, match="equal parallelism on both sides, not 4 and 3"):
        Forward().consumers(2, 4, 3)
    with pytest.raises(ValueError, match="equal parallelism on both sides, not 4 and 3"):
        Forward().open(2, 4, 3, 0)
