"""Policies that a region cannot follow are refused; checkpoints reach as far back as a writer's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.contract.operators import StateSnapshot
from headrace.engine.contract.region import Region
from headrace.engine.session.region_plan import RegionsPlan
from tests.engine.session.test_regions import numbers


class Heard:
    """A source whose reader acknowledges: no more than planning looks at."""

    schema = pa.schema([("sequence", pa.int64())])

    def reader(self) -> HeardReader:
        return HeardReader()


class HeardReader:
    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None: ...
    def open(self, context: object) -> None: ...
    def restore(self, states: object) -> None: ...
    def poll(self, rows_max: int) -> None: ...
    def commit(self) -> None: ...

    def snapshot(self) -> tuple[()]:
        return ()

    def close(self) -> None: ...


def plan(folder: Path, out: hr.SinkHandle, *regions: Region, interval: str = "1s") -> RegionsPlan:
    checkpoints = hr.Checkpoints(str(folder), interval=interval)
    job = hr.Job("job", out, checkpoints=checkpoints, regions=regions, parallelism=1)
    return job._regions_plan(job.options)


def logged(name: str = "log", **how: str) -> hr.Stream:
    return numbers(10).logged(name=name, **how)  # type: ignore[arg-type]


def test_batches_need_logs_that_are_read_when_committed(tmp_path: Path) -> None:
    batch = Region("out", policy="batch")
    plan(tmp_path, logged().write.collect(name="out"), batch)
    with pytest.raises(hr.UserError, match="reads source 'numbers': put logged"):
        source = Region("numbers", policy="batch")
        plan(tmp_path, logged().write.collect(name="out"), source)
    with pytest.raises(hr.UserError, match="reads log 'log' at once, of which no batch has an end"):
        plan(tmp_path, logged(read="at_once").write.collect(name="out"), batch)


def test_an_ephemeral_region_keeps_nothing(tmp_path: Path) -> None:
    counts = logged().key_by("key").aggregate(n=hr.count(), name="counts")
    with pytest.raises(hr.UserError, match=r"keeps nothing, but 'counts' \(test_.* keeps state"):
        plan(tmp_path, counts.write.collect(name="out"), Region("out", policy="ephemeral"))


def test_sources_of_an_ephemeral_region_acknowledge(tmp_path: Path) -> None:
    ephemeral = Region("heard", policy="ephemeral")
    heard = hr.from_source(Heard(), name="heard")  # type: ignore[arg-type]
    plan(tmp_path, heard.logged(name="log").write.collect(name="out"), ephemeral)
    with pytest.raises(hr.UserError, match=r"source 'numbers' \(.*\) acknowledges nothing"):
        ephemeral = Region("numbers", policy="ephemeral")
        plan(tmp_path, logged().write.collect(name="out"), ephemeral)


def retained(made: RegionsPlan) -> dict[str, int]:
    checkpoints = {region.name: region.options.checkpoints for region in made.regions}
    return {name: found.retain for name, found in checkpoints.items() if found is not None}


def test_a_reader_reaches_back_as_far_as_its_writer(tmp_path: Path) -> None:
    out = logged("a").logged(name="b").write.collect(name="out")
    fast = Region("a", interval="100ms")
    assert retained(plan(tmp_path, out, fast)) == {"numbers": 2, "a": 21, "b": 4}
    stated = Region("a", interval="100ms", retain=1)
    assert retained(plan(tmp_path, out, stated)) == {"numbers": 2, "a": 1, "b": 2}
    slow = Region("numbers", interval="1h")
    assert retained(plan(tmp_path, out, slow, fast))["a"] == 64


def test_what_the_job_states_is_kept(tmp_path: Path) -> None:
    checkpoints = hr.Checkpoints(str(tmp_path), retain=3)
    job = hr.Job("job", logged().write.collect(name="out"), checkpoints=checkpoints)
    assert set(retained(job._regions_plan(job.options)).values()) == {3}
