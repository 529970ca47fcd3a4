"""Kills of workers, drivers and the database server while a job writes to PostgreSQL: read back by
`psql`, nothing is lost, nothing is doubled, and no transaction stays open.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.bench.audit import HurriedBy
from tests.services.postgres import Postgres

from .conftest import Program, wait_until_dead

pytestmark = [pytest.mark.services, pytest.mark.slow]

DRIVER = Path(__file__).with_name("postgres_driver.py")
ROWS = 400_000
RATE_PER_S = 1000.0
TABLES = """
SET client_min_messages = warning;
DROP TABLE IF EXISTS numbers, totals, headrace_commits;
CREATE TABLE numbers (sequence bigint NOT NULL, key bigint NOT NULL);
CREATE TABLE totals (key bigint PRIMARY KEY, n bigint NOT NULL, sum bigint NOT NULL);
"""
PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
STAGES = r"SELECT relname FROM pg_class WHERE relname ~ '^headrace_[0-9a-f]{12}_' AND relkind = 'r'"
#: Keys whose newest total is not that of the numbers.
WRONG_TOTALS = """
SELECT coalesce(a.key, t.key) FROM (
    SELECT key, count(*) AS n, sum(sequence) AS sum FROM numbers GROUP BY key
) a FULL JOIN totals t USING (key) WHERE (a.n, a.sum) IS DISTINCT FROM (t.n, t.sum)
"""

Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path, postgres: Postgres) -> Iterator[Start]:
    """Starts drivers of one job over fresh tables."""
    for gid in postgres.psql(PREPARED):
        # Its locks would outlive a test that was killed.
        postgres.psql(f"ROLLBACK PREPARED '{gid}'")
    for table in postgres.psql(STAGES):
        postgres.psql(f"DROP TABLE {table}")
    postgres.psql(TABLES)
    programs: list[Program] = []

    def start(
        parallelism: int = 2,
        fault: str = "none",
        rate: float = RATE_PER_S,
        checkpoint: str = "auto",
    ) -> Program:
        facts = [str(tmp_path), postgres.uri, str(ROWS), str(rate), str(parallelism), fault]
        programs.append(Program(str(DRIVER), *facts, checkpoint))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def hurry(folder: Path) -> None:
    """Let the source make all that is left."""
    flag = folder / "hurry"
    flag.touch()
    assert HurriedBy(str(flag))() > time.monotonic_ns()


def assert_exact(postgres: Postgres) -> None:
    assert_rows_are_exact(postgres)
    assert_nothing_open(postgres)


def assert_rows_are_exact(postgres: Postgres) -> None:
    counts = "count(*), count(DISTINCT sequence), min(sequence), max(sequence)"
    assert postgres.psql(f"SELECT {counts} FROM numbers") == [f"{ROWS}|{ROWS}|0|{ROWS - 1}"]
    assert postgres.psql(WRONG_TOTALS) == []


def assert_nothing_open(postgres: Postgres) -> None:
    assert postgres.psql(PREPARED) == []
    assert postgres.psql(STAGES) == []


def assert_never_doubled(postgres: Postgres) -> None:
    assert postgres.psql("SELECT count(*) - count(DISTINCT sequence) FROM numbers") == ["0"]


def test_kills_at_every_step_are_exact(
    start: Start, postgres: Postgres, tmp_path: Path, long: bool
) -> None:
    """Of 20 (4) kills each fifth is of a worker, of the server, of the driver between pre-commit
    and commit, of the driver that has not noted its commit, and of a driver at any time; the answer
    of a commit is lost, too. Each new driver has another parallelism, and one rescale is live.
    """
    rng = random.Random(1)
    kinds = itertools.cycle(["worker", "before", "server", "after", "driver"])
    widths = itertools.cycle([2, 3, 2, 1])
    driver: Program | None = None
    pids: list[int] = []
    for kill in range(20 if long else 5):
        kind = next(kinds)
        if driver is None or kind in ("before", "after"):
            if driver is not None:
                driver.kill()
                driver.ended()
            fault = kind if kind in ("before", "after") else "answer"
            driver = start(next(widths), fault)
            if fault == "answer":
                pids = driver.until("running")
                # The answer of a commit of the second one is lost.
                for _ in range(3):
                    driver.until("checkpoint")
        if kill == 2:
            driver.tell("3")
            assert driver.until("rescaled") == 3
            pids = driver.last["running"]
        time.sleep(rng.uniform(0, 0.5))
        match kind:
            case "worker":
                os.kill(rng.choice(pids), signal.SIGKILL)
                pids = driver.until("running")
            case "server":
                postgres.kill()
                time.sleep(rng.uniform(0, 2))
                postgres.restart()
                driver.until("checkpoint")
            case _:
                if kind == "driver":
                    driver.kill()
                assert driver.ended()[0] == -signal.SIGKILL
                wait_until_dead(pids)
                driver, pids = None, []
        assert_never_doubled(postgres)
    driver = driver or start(2)
    hurry(tmp_path)
    driver.until("finished")
    assert driver.ended()[0] == 0
    assert_exact(postgres)


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_run_under_other_names_commits_what_the_checkpoint_carries_once(
    start: Start, postgres: Postgres, tmp_path: Path, fault: str
) -> None:
    """Killed in the midst of a commit, of inserts or upserts; then job, sinks and directory have
    other names.
    """
    killed = start(fault=fault)
    wait_until_dead([killed.process.pid])
    found = (tmp_path / "checkpoints" / "audited").glob("chk-*/metadata")
    newest = max((path.parent for path in found), key=lambda path: int(path.name[len("chk-") :]))
    hurry(tmp_path)
    start(3, checkpoint=str(newest)).until("finished")
    assert_rows_are_exact(postgres)


def test_a_server_that_is_away_during_commits_restarts_nothing(
    start: Start, postgres: Postgres, tmp_path: Path, long: bool
) -> None:
    driver = start()
    driver.until("checkpoint")
    postgres.kill()
    time.sleep(30 if long else 5)
    postgres.restart()
    for _ in range(3):
        driver.until("checkpoint")
    postgres.freeze()
    time.sleep(5 if long else 1)
    postgres.thaw()
    hurry(tmp_path)
    assert driver.until("restarts") == 0
    assert driver.ended()[0] == 0
    assert_exact(postgres)
