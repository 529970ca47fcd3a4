"""The physical floor: raw sockets, and `write` with `fsync`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.bench.floor import Floor, measure_floor


def test_a_checkpoint_crosses_hops_writes_bytes_and_commits() -> None:
    floor = Floor(hop_s=0.001, byte_s=1e-6, commit_s=0.005)
    assert floor.checkpoint_ms(6, 2000) == pytest.approx(13.0)
    assert floor.checkpoint_ms(6, 0) == pytest.approx(11.0)


def test_every_byte_is_written_and_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def noted(number: int) -> None:
        synced.append(os.fstat(number).st_size)
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    floor = measure_floor(str(tmp_path), 3_000_001, writers=2)
    assert synced.count(1_500_001) == 2 * 5
    assert min(floor.hop_s, floor.byte_s, floor.commit_s) > 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_written_has_no_price(tmp_path: Path) -> None:
    assert measure_floor(str(tmp_path), 0).byte_s == 0.0
