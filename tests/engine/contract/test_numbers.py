from __future__ import annotations

import pytest

from headrace.engine.contract import numbers


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0, "0"), (9_999, "9999"), (12_340, "12.3k"), (1_234_000, "1.2M"), (2e9, "2.0G")],
)
def test_rates_are_short(per_s: float, text: str) -> None:
    assert numbers.rate(per_s) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (512, "512 B"),
        (3_200, "3.1 KiB"),
        (13_000_000, "12.4 MiB"),
        (1 << 31, "2.0 GiB"),
        (1 << 41, "2.0 TiB"),
    ],
)
def test_sizes_have_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert numbers.size(size_bytes) == text


@pytest.mark.parametrize(
    ("ns", "text"), [(38_000_000, "38 ms"), (1_440_000_000, "1.4 s"), (125_000_000_000, "125 s")]
)
def test_times_have_the_unit_that_fits(ns: int, text: str) -> None:
    assert numbers.seconds(ns) == text


def test_a_column_of_queues_has_one_unit() -> None:
    assert [numbers.mebibytes(n) for n in (0, 1 << 20, 13_000_000)] == ["0.0", "1.0", "12.4"]


def test_machines_get_milliseconds_to_the_microsecond() -> None:
    assert numbers.milliseconds(1_234_567) == 1.235


def test_counts_agree_with_their_noun() -> None:
    found = [numbers.counted(n, "restart") for n in (0, 1, 2)]
    assert found == ["0 restarts", "1 restart", "2 restarts"]
