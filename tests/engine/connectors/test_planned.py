"""Sources of which one place plans splits, through failures and rescales."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors import (
    OperatorContext,
    Planned,
    RestoredState,
    SourceStatus,
    Split,
    StateKind,
)
from headrace.engine.connectors.planned import PlannerReader

WAIT_S = 60.0
SCHEMA = pa.schema([("x", pa.int64())])
#: Failures of this process that are still to come.
FAILURES: list[str] = []
#: Splits that were opened, and calls of `read` that skipped rows; of this process.
OPENED: list[str] = []
SKIPPED: list[int] = []
#: Unbounded planners go on until something is in here.
ENOUGH: list[str] = []


class Planner:
    """Plans `splits` splits, three at a time; an unbounded one waits for more then."""

    def __init__(self, source: Numbers) -> None:
        self._source = source

    def open(self, context: OperatorContext) -> None:
        pass

    def plan(self, place: str) -> Planned:
        first = int(place or 0)
        end = min(first + 3, self._source.splits)
        splits = [Split(f"split {n}", {"n": n}) for n in range(first, end)]
        if "plan" in FAILURES and first:
            FAILURES.remove("plan")
            raise RuntimeError("the planner is away")
        status = SourceStatus.MORE
        if end == self._source.splits:
            over = not self._source.follow or bool(ENOUGH)
            status = SourceStatus.END if over else SourceStatus.IDLE
        return Planned(splits, str(end), status, 1_000_000)

    def close(self) -> None:
        pass


class Reader:
    """Reads `rows` rows of a split, ten in a batch."""

    def __init__(self, source: Numbers) -> None:
        self._source = source

    def open(self, context: OperatorContext) -> None:
        pass

    def read(self, split: Split, skip: int) -> Iterator[pa.RecordBatch]:
        OPENED.append(split.name)
        if skip:
            SKIPPED.append(skip)
        first = int(split.payload["n"]) * self._source.rows
        numbers = list(range(first, first + self._source.rows))[skip:]
        for at in range(0, len(numbers), 10):
            if at and "read" in FAILURES:
                FAILURES.remove("read")
                raise RuntimeError("the split is away")
            yield pa.record_batch({"x": pa.array(numbers[at : at + 10], pa.int64())})

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Numbers:
    """A source of numbers in splits."""

    splits: int = 20
    rows: int = 95
    repeatable: bool = True
    follow: bool = False
    schema: pa.Schema = SCHEMA

    def planner(self) -> Planner:
        return Planner(self)

    def reader(self) -> Reader:
        return Reader(self)


@pytest.fixture(autouse=True)
def fresh() -> None:
    FAILURES.clear()
    OPENED.clear()
    SKIPPED.clear()
    ENOUGH.clear()


def job_of(source: Numbers, tmp_path: Path, **options: object) -> hr.Job:
    stream = hr.read.splits(source, name="numbers")
    checkpoints = hr.Checkpoints(str(tmp_path / "c"), interval="10ms")
    return hr.Job(
        "job",
        stream.write.collect(name="out"),
        max_parallelism=8,
        checkpoints=checkpoints,
        restart=hr.Restart(attempts=9, backoff="1ms"),
        **options,  # type: ignore[arg-type]  # the options of Job
    )


def numbers_of(result: hr.JobResult) -> list[int]:
    collected: list[int] = result.collected["out"]["x"].to_pylist()
    return sorted(collected)


def all_of(source: Numbers) -> list[int]:
    return list(range(source.splits * source.rows))


@pytest.mark.parametrize("repeatable", [True, False])
def test_every_record_of_every_split_comes_once(repeatable: bool, tmp_path: Path) -> None:
    source = Numbers(repeatable=repeatable)
    result = job_of(source, tmp_path, parallelism=3).start("threads").wait(WAIT_S)
    assert numbers_of(result) == all_of(source)
    assert sorted(OPENED) == sorted(f"split {n}" for n in range(source.splits))


@pytest.mark.parametrize("repeatable", [True, False])
def test_failures_of_planner_and_reader_lose_and_double_nothing(
    repeatable: bool, tmp_path: Path
) -> None:
    source = Numbers(splits=60, rows=400, repeatable=repeatable)
    FAILURES.extend(["plan", "read", "read"])
    result = job_of(source, tmp_path, parallelism=2).start("threads").wait(WAIT_S)
    assert numbers_of(result) == all_of(source)
    assert FAILURES == []
    assert repeatable or not SKIPPED, "what cannot be repeated is read from its beginning"


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_rescale_deals_unfinished_splits_out_anew(repeatable: bool, tmp_path: Path) -> None:
    source = Numbers(splits=200, rows=1000, repeatable=repeatable, follow=True)
    handle = job_of(source, tmp_path, parallelism=2).start("threads")
    handle.rescale(3)
    handle.rescale(1)
    ENOUGH.append("rescaled")
    assert numbers_of(handle.wait(WAIT_S)) == all_of(source)


def test_the_planner_goes_on_at_its_committed_place() -> None:
    source = Numbers(splits=7)
    context = OperatorContext("job", "numbers-splits", 0, 1, 8, 1)
    reader = PlannerReader(source)
    reader.open(context)
    first = reader.poll(100)
    assert [batch.num_rows for batch in first.batches] == [1, 1, 1], "dealt out one by one"
    reader.commit()
    reader.poll(100)  # not committed
    (state,) = reader.snapshot()
    assert (state.kind, state.table().to_pylist()) == (StateKind.LIST, [{"place": "3"}])
    again = PlannerReader(source)
    again.open(context)
    again.restore([RestoredState(state.name, state.kind, state.table())])
    names = [batch["name"][0].as_py() for batch in again.poll(100).batches]
    assert names == ["split 3", "split 4", "split 5"]
    assert again.poll(100).status is SourceStatus.END
    again.close()


def test_a_split_that_is_no_plain_data_is_refused_by_name() -> None:
    class Strange(Numbers):
        def planner(self) -> Planner:
            planner = Planner(self)
            bad = Split("s", {"at": 1.5})  # type: ignore[dict-item]  # what is refused
            planner.plan = lambda place: Planned([bad], "")  # type: ignore[method-assign]  # made so
            return planner

    reader = PlannerReader(Strange())
    reader.open(OperatorContext("job", "numbers-splits", 0, 1, 8, 1))
    with pytest.raises(ValueError, match=r"split 's' holds 'at': 1\.5; a payload holds strings"):
        reader.poll(1)


class DyingReader(Reader):
    """Its process ends in the midst of the third split, once."""

    def read(self, split: Split, skip: int) -> Iterator[pa.RecordBatch]:
        source = self._source
        assert isinstance(source, Dying)
        for batch in super().read(split, skip):
            yield batch
            if split.name == "split 2" and not Path(source.grave).exists():
                Path(source.grave).touch()
                os._exit(9)


@dataclass(frozen=True)
class Dying(Numbers):
    """A source whose reader dies."""

    grave: str = ""

    def reader(self) -> Reader:
        return DyingReader(self)


@pytest.mark.slow
@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.kills
def test_a_killed_worker_loses_and_doubles_nothing(repeatable: bool, tmp_path: Path) -> None:
    module = sys.modules[__name__]
    # Worker processes cannot import it.
    cloudpickle.register_pickle_by_value(module)
    try:
        source = Dying(rows=500, repeatable=repeatable, grave=str(tmp_path / "grave"))
        result = job_of(source, tmp_path, parallelism=2).start("processes").wait(WAIT_S)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert numbers_of(result) == all_of(source)
    assert (tmp_path / "grave").exists(), "nobody died"
