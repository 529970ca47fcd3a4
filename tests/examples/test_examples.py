"""The examples run as they stand, from the command line, and give what they promise."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(folder: Path, name: str, *words: str) -> list[dict[str, int]]:
    """Run an example in `folder`; return the records it prints."""
    code = "import sys; from headrace.engine.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(EXAMPLES / name), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_orders_are_totalled_per_customer(tmp_path: Path) -> None:
    found = run(tmp_path, "orders.py", "--runner", "threads")
    assert sorted(row["customer"] for row in found) == [0, 1, 2, 3, 4]
    assert sum(row["n"] for row in found) == 200_000 - 101
    assert sum(row["amount"] for row in found) == sum(range(101, 200_000))


def test_every_large_payment_behind_a_small_one_is_told(tmp_path: Path) -> None:
    found = run(tmp_path, "fraud.py", "--runner", "threads")
    assert sorted(row["card"] for row in found) == sorted([0, 1, 2, 3] * 1250)
    assert {row["amount"] for row in found} == {700}


def test_every_hundredth_visit_is_told(tmp_path: Path) -> None:
    found = run(tmp_path, "visits.py", "--runner", "threads")
    by_visitor: dict[int, list[int]] = {}
    for row in found:
        by_visitor.setdefault(row["visitor"], []).append(row["visits"])
    assert len(by_visitor) == 4
    assert all(told == list(range(100, told[-1] + 1, 100)) for told in by_visitor.values())


def test_the_slow_model_writes_every_number_once(tmp_path: Path) -> None:
    text = (EXAMPLES / "slow_model.py").read_text(encoding="utf-8")
    assert text.count("2_000_000") == 1
    shorter = tmp_path / "slow_model.py"
    shorter.write_text(text.replace("2_000_000", "100_000"), encoding="utf-8")
    run(tmp_path, str(shorter), "--runner", "processes")
    written = pq.read_table(tmp_path / "scored")
    assert sorted(written["sequence"].to_pylist()) == list(range(100_000))
    assert list((tmp_path / "checkpoints" / "slow-model").glob("chk-*/metadata"))


def test_a_region_that_crashes_leaves_the_others_alone(tmp_path: Path) -> None:
    found = run(tmp_path, "regions.py", "--runner", "processes")
    assert {row["key"]: row["n"] for row in found} == dict.fromkeys(range(5), 4_000)
    written = pq.read_table(tmp_path / "scores")
    assert sorted(written["order"].to_pylist()) == list(range(20_000))
    assert (tmp_path / "crashed").exists()


def test_clicks_are_counted_in_windows_and_joined(tmp_path: Path) -> None:
    found = run(tmp_path, "clicks.py", "--runner", "threads")
    seconds = [row for row in found if "window_start" in row]
    assert sum(row["n"] for row in seconds) == 20_000
    assert len({(row["page"], row["window_start"]) for row in seconds}) == len(seconds)
    assert sorted(row["page"] for row in found if "window_start" not in row) == [0, 1, 2]


def test_orders_pass_up_to_the_limits(tmp_path: Path) -> None:
    found = run(tmp_path, "limits.py", "--runner", "threads")
    assert found
    assert len({row["order"] for row in found}) == len(found)
    assert all(sum(row["customer"] == c for row in found) <= 20 * 100 for c in range(4))


def test_every_order_that_is_never_paid_is_told_once(tmp_path: Path) -> None:
    found = run(tmp_path, "unpaid.py", "--runner", "threads")
    assert sorted(row["order"] for row in found) == list(range(0, 10_000, 8))


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_orders_are_asked_for_until_they_are_priced_or_given_up(
    tmp_path: Path, runner: str
) -> None:
    found = run(tmp_path, "retries.py", "--runner", runner)
    given_up = {row["order"]: str(row["error"]) for row in found if not row["price"]}
    assert given_up == {
        order: f"order {order} was refused at attempt 4" for order in range(0, 2_000, 20)
    }
    priced = {row["order"]: (row["attempts"], row["price"]) for row in found if row["price"]}
    assert priced == {order: (order % 3 + 1, order + 1) for order in range(2_000) if order % 20}
    assert len(found) == 2_000


@pytest.mark.spark
def test_spark_sql_comes_before_and_after_a_job(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "spark_sql.py")],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line["page"] for line in map(ast.literal_eval, done.stdout.splitlines())] == [0, 1, 2]
    assert pq.read_table(tmp_path / "pages")["n"].to_pylist()
