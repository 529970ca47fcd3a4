"""Answers as counted rows, of tables and of lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from headrace.bench.nexmark.answers import of_lines, of_rows, of_table


def test_lines_of_all_files_are_rows_of_numbers_and_strings(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("Kate White,Kent,WA,7\nKate White,Kent,WA,7\n")
    (tmp_path / "1.csv").write_text("Saul Smith,Bend,OR,1.5\n")
    assert of_lines(3, tmp_path) == Counter(
        {("Kate White", "Kent", "WA", 7): 2, ("Saul Smith", "Bend", "OR", 1.5): 1}
    )


def test_times_are_milliseconds() -> None:
    table = pa.table({"id": [1], "starts": pa.array([5_000_000_000], pa.timestamp("ns"))})
    assert of_table(8, table) == Counter({(1, 5000): 1})


def test_digests_are_added_up_and_only_the_last_average_counts() -> None:
    assert of_rows(0, [(1, 2**64 - 1, 4), (2, 3, 4)]) == Counter({(3, 2, 8): 1})
    assert of_rows(4, [(10, 2, 7.5), (10, 1, 9.0), (11, 1, 4.0)]) == Counter(
        {(10, 2, 7.5): 1, (11, 1, 4.0): 1}
    )
