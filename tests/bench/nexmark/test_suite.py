"""`headrace bench nexmark` over engines made for the test: nothing is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.bench.nexmark.suite import rounded, run
from headrace.bench.peers.suite import Peer

#: Answers query 2 from the numbers themselves; `WRONG` is added to each price.
ENGINE = """\
import json, sys
from headrace.bench.nexmark.reference import expected
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["--interval-s"] == "1.0" and given["--workers"] == "2"
rows = expected(int(given["--query"]), int(given["--events"])).elements()
with open(given["--folder"] + "/answer/0.csv", "w") as out:
    out.writelines(f"{auction},{price + WRONG}\\n" for auction, price in rows)
if FAILS:
    raise SystemExit("no memory")
print(json.dumps({"running_s": 2.0}))
"""


def engine(folder: Path, name: str, *, wrong: int = 0, fails: bool = False) -> Peer:
    script = folder / f"{name}.py"
    script.write_text(f"WRONG, FAILS = {wrong}, {fails}\n{ENGINE}")
    return Peer(name, lambda: [sys.executable, str(script)], "nothing", share=2)


def test_wrong_answers_are_found_and_failed_engines_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peers = (
        engine(tmp_path, "right"),
        engine(tmp_path, "wrong", wrong=1),
        engine(tmp_path, "failing", fails=True),
    )
    monkeypatch.setattr("headrace.bench.nexmark.suite.PEERS", peers)
    said: list[str] = []
    found = list(
        run(
            queries=[2],
            events=8000,
            runner="threads",
            rounds=2,
            peers=["right", "wrong", "failing"],
            report=said.append,
        )
    )
    arms = [(each["engine"], each["events"], each["correct"], each["rounds"]) for each in found]
    assert arms == [
        ("headrace", 8000, True, 2),
        ("right", 4000, True, 2),
        ("wrong", 4000, False, 2),
    ]
    assert found[1]["events_per_s"] == 2000
    assert said.count("query 2 is left out in failing: it ended with exit code 1: no memory") == 2


def test_each_subtask_gets_whole_runs_of_events() -> None:
    assert [rounded(count, 2) for count in (1, 100, 101)] == [100, 100, 200]
