"""Four regimes in one application: each query is answered once, and rightly, whoever is killed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import cloudpickle
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engine.coordinator.rules import Phase
from headrace.engine.session.handle import JobHandle
from headrace.engine.session.regions import RegionsSession

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "communities.py"
REGIONS = ("inbox", "friendships", "rounds", "friends", "answer")


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("communities", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Workers cannot import the example: it travels by value.
    sys.modules["communities"] = module
    cloudpickle.register_pickle_by_value(module)
    return module


def job_of(example: ModuleType, folder: Path, rate: float, queries_rate: float) -> hr.Job:
    answers, labels, friends = example.application(rate=rate, queries_rate=queries_rate)
    lowest = labels.key_by("person").aggregate(label=hr.min("community"), emit="final", name="low")
    most = friends.key_by("person").aggregate(n=hr.max("friends"), emit="final", name="most")
    return hr.Job(
        "communities",
        answers.write.to(example.Statistics(str(folder / "communities.db")), name="database"),
        lowest.write.parquet(str(folder / "labels"), name="labels-out"),
        most.write.parquet(str(folder / "friends"), name="friends-out"),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="200ms"),
        regions=example.REGIONS,
        restart=hr.Restart(attempts=50),
        parallelism=1,
    )


def friends_of(example: ModuleType) -> dict[int, list[int]]:
    """All friendships, by person, from the example's own numbers."""
    friends: dict[int, list[int]] = {person: [] for person in range(example.PEOPLE)}
    numbers = hr.read.sequence(example.FRIENDSHIPS, keys=example.PEOPLE, name="n")
    out = hr.Job("numbers", numbers.write.collect(name="out")).run("threads").collected["out"]
    for row in out.to_pylist():
        for told in example.both_ways(row):
            friends[told["person"]].append(told["other"])
    return friends


def communities_of(friends: dict[int, list[int]]) -> dict[int, int]:
    """The lowest person of each person's community, by a walk."""
    lowest: dict[int, int] = {}
    for person in sorted(friends):
        to_visit = [person]
        while to_visit:
            each = to_visit.pop()
            if each not in lowest:
                lowest[each] = person
                to_visit += friends[each]
    return lowest


def check(example: ModuleType, folder: Path) -> None:
    """Each query was answered once, by what was true by then or before."""
    friends = friends_of(example)
    communities = communities_of(friends)
    with contextlib.closing(sqlite3.connect(folder / "communities.db")) as database:
        answers = database.execute("SELECT * FROM answers").fetchall()
        asked = dict(database.execute("SELECT person, asked FROM statistics").fetchall())
    assert sorted(query for query, *_ in answers) == list(range(example.QUERIES))
    assert asked == Counter(query * 7 % example.PEOPLE for query in range(example.QUERIES))
    for query, person, community, count in answers:
        assert person == query * 7 % example.PEOPLE
        assert communities[community] == communities[person], "a label of another community"
        assert communities[person] <= community <= person, "labels only fall"
        assert 0 <= count <= len(friends[person]), "friends are counted once"
    labels = pq.read_table(folder / "labels").to_pylist()
    met = {person for person, others in friends.items() if others}
    assert {row["person"]: row["label"] for row in labels} == {p: communities[p] for p in met}
    counts = pq.read_table(folder / "friends").to_pylist()
    assert {row["person"]: row["n"] for row in counts} == {p: len(friends[p]) for p in met}


def session_of(handle: JobHandle) -> RegionsSession:
    session = handle._session
    assert isinstance(session, RegionsSession)
    return session


def kill(handle: JobHandle, region: str) -> bool:
    """Kill a worker of a region; False: it has none now."""
    pids = session_of(handle).regions()[region].workers.values()
    for pid in list(pids)[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


@pytest.mark.slow
@pytest.mark.kills
def test_every_regime_survives_kills(example: ModuleType, tmp_path: Path, long: bool) -> None:
    rounds = 6 if long else 1
    seconds = 12 * rounds
    handle = job_of(
        example, tmp_path, example.FRIENDSHIPS / seconds, example.QUERIES / (seconds + 8)
    ).start("processes")
    rng = random.Random(7)
    killed: Counter[str] = Counter()
    try:
        for region in REGIONS * rounds:
            deadline_s = time.monotonic() + 60
            while not kill(handle, region):
                if handle.status().phase is Phase.ENDED or time.monotonic() > deadline_s:
                    break
                time.sleep(0.02)
            else:
                killed[region] += 1
            time.sleep(rng.uniform(0.2, 0.6))
        assert handle.wait(300).outcome == "finished"
    finally:
        if handle.status().phase is not Phase.ENDED:
            handle.cancel()
    assert set(killed) == set(REGIONS), killed
    check(example, tmp_path)


@pytest.mark.spark
@pytest.mark.slow
def test_it_runs_on_spark(example: ModuleType, tmp_path: Path, long: bool) -> None:
    if not long:
        pytest.skip("starts Spark with five regions: --long")
    handle = job_of(example, tmp_path, 200, 15).start("spark")
    killed = 0
    for region in REGIONS:
        deadline_s = time.monotonic() + 60
        while not (hit := kill(handle, region)) and time.monotonic() < deadline_s:
            if handle.status().phase is Phase.ENDED:
                break
            time.sleep(0.05)
        killed += hit
        time.sleep(1.0)
    assert handle.wait(600).outcome == "finished"
    assert killed >= 4
    check(example, tmp_path)
