"""`headrace bench peers` over engines made for the test: nothing is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.bench.peers.environments import Unavailable
from headrace.bench.peers.suite import PEERS, Peer, run

Install = Callable[..., None]

#: Counts as the peers do; `wrong` is added to the first count.
ENGINE = """\
import json, sys, pathlib
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
records, keys, multiplier = (int(given["--" + n]) for n in ("records", "keys", "multiplier"))
pathlib.Path(LOG).open("a").write(NAME + " " + given["--interval-s"] + "\\n")
totals = {}
for number in range(records):
    key = number * multiplier % keys
    count, total = totals.get(key, (0, 0))
    totals[key] = count + 1, total + number
totals[0] = totals[0][0] + WRONG, totals[0][1]
with open(given["--folder"] + "/answer/all.csv", "w") as out:
    out.writelines(f"{key},{n},{total}\\n" for key, (n, total) in totals.items())
print("a line of the engine's own")
print(json.dumps({"records": records, "running_s": 2.0}))
"""


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Peer]:
    """Make an engine that answers at once; `wrong` is added to one of its counts."""

    def make(name: str, *, wrong: int = 0, share: int = 1) -> Peer:
        script = tmp_path / f"{name}.py"
        constants = f"LOG, NAME, WRONG = {str(tmp_path / 'log')!r}, {name!r}, {wrong}\n"
        script.write_text(constants + ENGINE)
        return Peer(name, lambda: [sys.executable, str(script)], "nothing", share)

    return make


def use(monkeypatch: pytest.MonkeyPatch, *peers: Peer) -> None:
    monkeypatch.setattr("headrace.bench.peers.suite.PEERS", peers)
    monkeypatch.setattr("headrace.bench.peers.suite.NAMES", tuple(peer.name for peer in peers))


def test_rounds_interleave_engines_and_results_are_medians(
    engine: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, engine("one"), engine("two", share=2))
    found = list(run(records=4000, rounds=2, report=lambda line: None))
    arms = [(each["peer"], each["checkpoint_interval"], each["records_per_s"]) for each in found]
    assert arms == [
        ("one", "none", 2000),
        ("one", "1s", 2000),
        ("two", "none", 1000),
        ("two", "1s", 1000),
    ]
    assert all(each["correct"] and each["rounds"] == 2 for each in found)
    order = ["one 0.0", "one 1.0", "two 0.0", "two 1.0"]
    assert (tmp_path / "log").read_text().splitlines() == order * 2


def test_a_wrong_count_is_found(
    engine: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, engine("one", wrong=1), engine("two"))
    found = list(run(records=1000, rounds=1, report=lambda line: None))
    assert [each["correct"] for each in found] == [False, False, True, True]


def test_an_engine_that_cannot_be_installed_is_skipped_in_one_sentence(
    engine: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> list[str]:
        raise Unavailable("mvn is not on PATH: install Maven")

    said: list[str] = []
    use(monkeypatch, Peer("one", missing, ""), engine("two"))
    found = list(run(records=1000, rounds=1, report=said.append))
    assert {each["peer"] for each in found} == {"two"}
    assert said[0] == "one is skipped: mvn is not on PATH: install Maven"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("raise SystemExit('no memory')", "no memory"),
        ("import sys, atexit; atexit.register(print, 'bye', file=sys.stderr); int('x')", "invalid"),
    ],
)
def test_an_engine_that_fails_is_left_out_with_its_error(
    script: str, told: str, engine: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Peer("one", lambda: [sys.executable, "-c", script], "")
    said: list[str] = []
    use(monkeypatch, failing, engine("two"))
    found = list(run(records=1000, rounds=1, report=said.append))
    assert {each["peer"] for each in found} == {"two"}
    assert said[0].startswith("one is left out: it ended with exit code 1: ")
    assert told in said[0]


def test_only_engines_that_are_asked_for_run(
    engine: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, engine("one"), engine("two"))
    found = list(run(only=["two"], records=1000, rounds=1, report=lambda line: None))
    assert {each["peer"] for each in found} == {"two"}


@pytest.mark.slow
def test_this_engine_runs_as_one_of_its_peers() -> None:
    ours = next(peer.name for peer in PEERS if peer.name == "headrace")
    found = list(run(only=[ours], records=200_000, rounds=1, report=lambda line: None))
    assert [(each["correct"], each["records"]) for each in found] == [(True, 200_000)] * 2
