"""Files, Delta and Iceberg through kills at each step of a commit: 0 rows lost, 0 doubled.

Kills before a commit and after it, answers that are lost, killed workers and drivers, and another
parallelism from run to run and within runs. What has arrived is read by other programs: pyarrow's
datasets, deltalake, pyiceberg.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import headrace as hr
from headrace.engine.contract.errors import HeadraceError
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.metadata import CheckpointMetadata

from ..services.s3 import S3
from .conftest import WAIT_S, is_alive, wait_for
from .sink_driver import catalog as catalog_of
from .test_same_command import descendants

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("sink_driver.py")
SHORT = ("before", "worker", "after", "lost")
EVERY = ("before", "after", "lost", "driver", "worker", "rescale")
#: Each run brings about so many rows before its death.
ROWS_A_RUN = 12_000
RATE = 3_000.0
#: Commits take longer there.
RATE_ON_S3 = 400.0


@dataclass
class Runs:
    """Runs of one job into one sink.

    Attributes:
        place: folder or URL of the output.
        said: all that the drivers have said on standard output and error.
    """

    kind: str
    folder: Path
    place: str
    rows: int
    said: list[str] = field(default_factory=list)

    def run(self, death: str, parallelism: int, rate: float = RATE, **names: str) -> None:
        """Run until the death, or to the end. `names`: see the driver's `Names`."""
        facts = [str(self.folder), self.place, self.kind, str(self.rows), str(rate)]
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), *facts, str(parallelism), death, json.dumps(names)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        below: set[int] = set()

        def is_over() -> bool:
            below.update(descendants(process.pid))
            return process.poll() is not None

        try:
            wait_for(is_over)
            said = process.stdout.read() if process.stdout is not None else ""
        finally:
            for pid in below:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
            process.communicate(timeout=WAIT_S)
        self.said.append(said)
        wait_for(lambda: not any(map(is_alive, below)), f"the end of {below}")
        assert process.returncode == (0 if death == "none" else -signal.SIGKILL), said
        assert ("finished" if death == "none" else f"died {death}") in said, said

    def read(self) -> pa.Table:
        """What another program reads."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            options = {"AWS_ALLOW_HTTP": "true"} if "://" in self.place else None
            table = DeltaTable(f"{self.place}/table", storage_options=options)
            return table.to_pyarrow_table()
        if self.kind == "iceberg":
            from pyiceberg.catalog import load_catalog

            properties = catalog_of(str(self.folder), self.place)
            return load_catalog("default", **properties).load_table("shop.rows").scan().to_arrow()
        fs, path = fsspec.core.url_to_fs(f"{self.place}/table")
        return ds.dataset(path, filesystem=fs, format=self.kind, partitioning="hive").to_table()

    def assert_exact(self, copies: int = 1) -> None:
        """Every row is there, so many times, in its partition."""
        table = self.read()
        found = np.sort(table["sequence"].to_numpy())
        assert np.array_equal(found, np.repeat(np.arange(self.rows), copies)), (
            f"{self.rows * copies} rows expected, {len(found)} found,"
            f" {len(np.unique(found))} different ones"
        )
        parts = table["sequence"].to_numpy() // 1000 & 1
        assert np.array_equal(parts, table["part"].to_numpy())


def deaths_of(long: bool, seed: int) -> list[str]:
    """20 deaths in any order, or one of each kind."""
    if not long:
        return list(SHORT)
    rng = random.Random(seed)
    chosen = [*EVERY * 4][:20]
    rng.shuffle(chosen)
    return chosen


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta", "iceberg"])
def test_no_row_is_lost_or_doubled(tmp_path: Path, kind: str, long: bool) -> None:
    deaths = deaths_of(long, seed=len(kind))
    runs = Runs(kind, tmp_path, str(tmp_path), ROWS_A_RUN * (len(deaths) + 1))
    for count, death in enumerate(deaths):
        runs.run(death, parallelism=2 + count % 2)
    runs.run("none", parallelism=2, rate=0.0)
    runs.assert_exact()
    left = [path.name for path in tmp_path.rglob("*") if path.suffix in (".tmp", ".begun")]
    assert left == []


def assert_exact_under_other_names(runs: Runs, deaths: Sequence[str], **others: str) -> None:
    """Killed at a commit of checkpoint 3; then the sink has another name, and is killed as well;
    at last job, sink and directory have other names.
    """
    for number, death in enumerate(deaths):
        new = f"out {number}"
        runs.run(death, 2, RATE, sink=new, renamed=renamed_to(new, runs), **others)
    checkpoint = newest_checkpoint(runs)
    assert checkpoint is not None, "every run was killed too early"
    folder = runs.folder / "checkpoints" / "sinks" / f"chk-{checkpoint.checkpoint}"
    others |= {"job": "other", "checkpoints": "others", "restore": str(folder)}
    runs.run("none", 3, 0.0, sink="rows", renamed=renamed_to("rows", runs), **others)
    runs.assert_exact()


@pytest.mark.parametrize(
    ("kind", "death"), [("parquet", "before"), ("delta", "after"), ("iceberg", "after")]
)
def test_a_run_under_other_names_commits_what_the_checkpoint_carries_once(
    tmp_path: Path, kind: str, death: str
) -> None:
    runs = Runs(kind, tmp_path, str(tmp_path), ROWS_A_RUN)
    assert_exact_under_other_names(runs, [death], runner="threads")


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta", "iceberg"])
def test_every_run_may_have_other_names(tmp_path: Path, kind: str, only_long: None) -> None:
    deaths = deaths_of(True, seed=len(kind))
    runs = Runs(kind, tmp_path, str(tmp_path), ROWS_A_RUN * (len(deaths) + 1))
    assert_exact_under_other_names(runs, deaths)


def newest_checkpoint(runs: Runs) -> CheckpointMetadata | None:
    store = FsspecStore(str(runs.folder / "checkpoints"))
    return catalog.newest_valid(store, "sinks")[0]


def renamed_to(new: str, runs: Runs) -> str:
    """The sink's name in the newest checkpoint, and its new one: a run may have been killed before
    its first checkpoint.
    """
    checkpoint = newest_checkpoint(runs)
    operators = [] if checkpoint is None else [o for t in checkpoint.tasks for o in t.operators]
    return ",".join(f"{name}={new}" for name in operators if name.startswith("out"))


SECRET = "not-to-be-seen-anywhere"


@pytest.mark.services
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_checkpoints_and_output_on_s3_are_exact_and_keep_the_secret(
    tmp_path: Path, kind: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials come from the environment, and for files and Delta from options, too."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    if kind != "iceberg":
        options = {"key": "tests", "secret": SECRET, "endpoint_url": s3.endpoint}
        monkeypatch.setenv("TEST_STORAGE_OPTIONS", json.dumps(options))
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    bucket = f"sinks-{kind}-{os.getpid()}"
    fs.mkdir(bucket)
    deaths = ("worker", "before", "after", "lost")
    runs = Runs(kind, tmp_path, f"s3://{bucket}", ROWS_A_RUN * 5)
    for count, death in enumerate(deaths):
        runs.run(death, parallelism=2 + count % 2, rate=RATE_ON_S3)
    runs.run("none", parallelism=2, rate=0.0)
    runs.assert_exact()
    fs.invalidate_cache()
    stored = fs.find(bucket)
    assert not [path for path in stored if path.endswith((".tmp", ".begun"))]
    assert not [said for said in runs.said if SECRET in said]
    assert not [path for path in stored if SECRET.encode() in fs.cat_file(path)]


@pytest.mark.services
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_bucket_that_does_not_answer_is_one_sentence_without_the_secret(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"key": "tests", "secret": SECRET, "endpoint_url": "http://127.0.0.1:9"}
    stream = hr.read.sequence(1, name="numbers")
    with pytest.raises(HeadraceError) as told:
        getattr(stream.write, kind)("s3://nowhere/table", name="out", storage_options=options)
    assert "s3://nowhere/table" in str(told.value) or "nowhere/table" in str(told.value)
    assert SECRET not in f"{told.value!r} {told.value}"
    assert len(str(told.value).splitlines()) == 1
