"""Changed programs on an old checkpoint: what goes on, with which result, and what is refused
before anything is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.inspection.contents import state_of
from headrace.engine.inspection.directory import open_checkpoint
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog

KEYS = 5
#: Records that a changed program has left to make.
MORE = 300
OUT = pa.schema([("key", pa.int64()), ("n", pa.int64())])


SEEN = pa.struct([("n", pa.int64())])


def counting(
    type_: pa.DataType = SEEN,
    default: Any = None,
    name: str = "seen",
) -> type[hr.StatefulProcessor]:
    """A processor that counts each key's records in a struct; `extra` is added to it if there is
    such a field.
    """

    class Counting(hr.StatefulProcessor):
        def process(self, key: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
            state = getattr(self, name)
            seen = dict(state.value or {"n": 0})
            seen["n"] += 1
            state.value = seen
            yield {"key": key, "n": seen["n"] + (seen.get("extra") or 0)}

    setattr(Counting, name, hr.value_state(type_, default=default or {"n": 0}))
    return Counting


def job(
    folder: Path,
    rows: int | None = MORE,
    *,
    rate: float | None = None,
    processor: type[hr.StatefulProcessor] | None = None,
    operator: str = "counts",
    source: str = "numbers",
    before: Callable[[hr.Stream], hr.Stream] = lambda stream: stream,
    after: Callable[[hr.Stream], hr.Stream] = lambda stream: stream,
    sink: str = "out",
    keys: str = "key",
    **options: Any,
) -> hr.Job:
    numbers = before(hr.read.sequence(rows, keys=KEYS, name=source, rate=rate))
    counts = numbers.key_by(keys).process(processor or counting(), schema=OUT, name=operator)
    written = after(counts).write.parquet(str(folder / "written"), name=sink)
    stated: dict[str, Any] = {"parallelism": 2, "max_parallelism": 16}
    return hr.Job("job", written, checkpoints=str(folder / "checkpoints"), **(stated | options))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first program's checkpoint, in the midst of its input."""
    handle = job(tmp_path, None, rate=5_000).start("threads")
    handle.checkpoint()
    handle.stop()
    handle.wait(30.0)
    return tmp_path


def epochs(folder: Path) -> int | None:
    return catalog.newest_epoch(FsspecStore(str(folder / "checkpoints")), "job")


def held(folder: Path, operator: str) -> list[dict[str, Any]]:
    """An operator's state in the newest checkpoint."""
    view = state_of(open_checkpoint(str(folder / "checkpoints")), operator)
    batches = [batch for piece in view.pieces for batch in view.read(piece)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, view.schema).to_pylist()
    return rows


def with_more(folder: Path) -> int:
    """An input that is longer than what the checkpoint's source had made."""
    made: int = max(row["next"] for row in held(folder, "numbers"))
    return MORE + made


GROWN = pa.struct([("n", pa.int64()), ("extra", pa.int64())])

GOES_ON: dict[str, dict[str, Any]] = {
    "unchanged": {},
    "an operator is added before": {
        "before": lambda s: s.rebalance().select("key", "sequence", name="new")
    },
    "an operator is added behind": {
        "after": lambda s: s.rebalance().select("key", "n", name="new")
    },
    "a stateful operator is added": {
        "after": lambda s: s.key_by("key").process(counting(), schema=OUT, name="again")
    },
    "more subtasks": {"parallelism": 3},
    "fewer subtasks": {"parallelism": 1},
}


@pytest.mark.parametrize("change", GOES_ON.values(), ids=list(GOES_ON))
def test_a_changed_program_goes_on_with_its_state(folder: Path, change: dict[str, Any]) -> None:
    rows = with_more(folder)
    job(folder, rows, **change).run("threads", restore="latest")
    assert sum(row["seen"]["n"] for row in held(folder, "counts")) == rows


@pytest.mark.parametrize(("default", "extra"), [({"n": 0}, None), ({"n": 0, "extra": 7}, 7)])
def test_an_added_field_is_filled(folder: Path, default: dict[str, int], extra: int | None) -> None:
    rows = with_more(folder)
    changed = job(folder, rows, processor=counting(GROWN, default))
    changed.run("threads", restore="latest")
    seen = [row["seen"] for row in held(folder, "counts")]
    assert sum(each["n"] for each in seen) == rows
    assert {each["extra"] for each in seen} == {extra}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a field is gone": (
        {"processor": counting(pa.struct([("m", pa.int64())]), {"m": 0})},
        (
            r"operator 'counts': the checkpoint holds state 'seen' as \(key: int64, seen:"
            r" struct<n: int64>\) but the program"
            r" has \(key: int64, seen: struct<m: int64>\); give the changed operator a new name="
        ),
    ),
    "another type": (
        {"processor": counting(pa.struct([("n", pa.int32())]))},
        r"seen: struct<n: int32>",
    ),
    "a field that needs a value": (
        {
            "processor": counting(
                pa.struct([("n", pa.int64()), pa.field("m", pa.int64(), nullable=False)]), {"n": 0}
            )
        },
        "m: int64 not null",
    ),
    "a state is gone": (
        {"processor": counting(name="other")},
        "the checkpoint holds state 'seen' but the program has only 'other'; declare it again",
    ),
    "another key": ({"keys": "sequence"}, r"\(sequence: int64"),
    "an operator is gone": (
        {"operator": "renamed"},
        "holds state of operator 'counts', which this job does not have: give an operator its name",
    ),
    "a sink is gone": (
        {"sink": "elsewhere"},
        "transactions of sink 'out', which this job does not have",
    ),
    "other key groups": ({"max_parallelism": 32}, "set max_parallelism=16"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_go_on_is_refused_before_anything_is_claimed(
    folder: Path, change: dict[str, Any], said: str
) -> None:
    before = epochs(folder)
    with pytest.raises(hr.UserError, match=said):
        job(folder, **change).run("threads", restore="latest")
    assert epochs(folder) == before


def test_state_of_an_operator_that_is_gone_is_dropped_when_that_is_allowed(folder: Path) -> None:
    rows = with_more(folder)
    handle = job(folder, rows, operator="renamed", sink="elsewhere").start(
        "threads", restore="latest", allow_unclaimed_state=True
    )
    handle.wait(30.0)
    said = [notice.text for _, notice in handle.status().notices]
    assert any("state of operator 'counts' is dropped" in text for text in said), said
    assert any("transactions of sink 'out' is dropped" in text for text in said), said
    assert sum(row["seen"]["n"] for row in held(folder, "renamed")) < rows


def test_a_struct_in_a_database_may_gain_fields_as_well(tmp_path: Path) -> None:
    rocks = hr.State("rocksdb")
    handle = job(tmp_path, None, rate=5_000, state=rocks).start("threads")
    handle.checkpoint()
    handle.stop()
    handle.wait(30.0)
    rows = with_more(tmp_path)
    grown = counting(GROWN, {"n": 0, "extra": 7})
    job(tmp_path, rows, processor=grown, state=rocks).run("threads", restore="latest")
    seen = [row["seen"] for row in held(tmp_path, "counts")]
    assert sum(each["n"] for each in seen) == rows
    assert {each["extra"] for each in seen} == {7}


CLICKED = pa.schema([("key", pa.int64()), ("at", pa.timestamp("ms"))])


def clicked(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"key": batch["key"], "at": batch["sequence"].view(pa.timestamp("ms"))}


def timed(folder: Path, last: hr.Aggregation, state: hr.State, size: str = "1m") -> hr.Job:
    """A job with windows and a join of what was clicked, of which `last` is aggregated."""
    numbers = hr.read.sequence(None, keys=KEYS, name="numbers", rate=5_000)
    clicks = numbers.map_batches(clicked, schema=CLICKED, name="clicks").with_watermark("at", "1s")
    keyed = clicks.key_by("key")
    windows = keyed.window(hr.tumbling(size)).aggregate(last=last, name="windows")
    pairs = clicks.join(keyed.stream, "key", within="5ms", name="pairs")
    return hr.Job(
        "job",
        windows.write.parquet(str(folder / "windows"), name="windows-out"),
        pairs.write.parquet(str(folder / "pairs"), name="pairs-out"),
        parallelism=2,
        max_parallelism=16,
        state=state,
        checkpoints=str(folder / "checkpoints"),
    )


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_windows_of_other_columns_or_sizes_are_refused_before_anything_is_claimed(
    tmp_path: Path, backend: Any
) -> None:
    handle = timed(tmp_path, hr.count(), hr.State(backend)).start("threads")
    handle.checkpoint()
    handle.stop()
    handle.wait(30.0)
    before = epochs(tmp_path)
    with pytest.raises(
        hr.UserError, match=r"operator 'windows': the checkpoint holds state 'windows'"
    ):
        timed(tmp_path, hr.max("at"), hr.State(backend)).run("threads", restore="latest")
    with pytest.raises(
        hr.UserError, match=r"holds windows of 60 s, every 60 s.* \(30 s, every 30 s"
    ):
        timed(tmp_path, hr.count(), hr.State(backend), "30s").run("threads", restore="latest")
    assert epochs(tmp_path) == before


def test_a_processor_on_disk_is_asked_as_well(tmp_path: Path) -> None:
    rocks = hr.State("rocksdb")
    handle = job(tmp_path, None, rate=5_000, state=rocks).start("threads")
    handle.checkpoint()
    handle.stop()
    handle.wait(30.0)
    before = epochs(tmp_path)
    changed = counting(pa.struct([("m", pa.int64())]), {"m": 0})
    with pytest.raises(hr.UserError, match="holds state 'seen'"):
        job(tmp_path, processor=changed, state=rocks).run("threads", restore="latest")
    assert epochs(tmp_path) == before


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    "renamed", [{"counts": "totals", "numbers": "orders"}, "counts=totals,numbers=orders"]
)
def test_renamed_operators_find_their_state(tmp_path: Path, renamed: Any, backend: Any) -> None:
    state = hr.State(backend, directory=str(tmp_path / "state"))
    handle = job(tmp_path, None, rate=5_000, state=state).start("threads")
    handle.checkpoint()
    handle.stop()
    handle.wait(30.0)
    rows = with_more(tmp_path)
    again = job(tmp_path, rows, operator="totals", source="orders", state=state)
    with pytest.raises(
        hr.UserError, match=r"has another name now, say so with --map numbers=orders "
    ):
        again.run("threads", restore="latest")
    again.run("threads", restore="latest", renamed=renamed)
    assert sum(row["seen"]["n"] for row in held(tmp_path, "totals")) == rows
    # A supervisor repeats the same command: the newest checkpoint bears the new names already.
    again.run("threads", restore="latest", renamed=renamed)


@pytest.mark.parametrize(
    ("renamed", "sentence"),
    [
        ({"counts": "totels"}, "the job has no operator 'totels'; did you mean 'totals'"),
        ({"numbers": "totals"}, "the job still has an operator 'numbers'"),
        ({"count": "totals"}, "renamed: chk-1 has no operator 'count'; it has"),
    ],
)
def test_a_renaming_that_does_not_fit_is_refused_before_anything_is_claimed(
    folder: Path, renamed: dict[str, str], sentence: str
) -> None:
    newest = catalog.complete_checkpoints(FsspecStore(str(folder / "checkpoints")), "job")[0]
    claimed = epochs(folder)
    with pytest.raises(hr.UserError, match=sentence.replace("chk-1 ", f"chk-{newest} ")):
        job(folder, operator="totals").run("threads", restore="latest", renamed=renamed)
    assert epochs(folder) == claimed
