"""Staged micro-batches: removed when all that is kept has read them, and never read twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.connectors.filesystem import locate
from headrace.engine.connectors.spark.batches import Batches, Passed, ReadSoFar, manifest_name
from headrace.engine.connectors.spark.staging import scan_of
from headrace.engine.connectors.spark.stream import StreamReader
from headrace.engine.contract.operators import OperatorContext, RestoredState

SCHEMA = pa.schema([("n", pa.int64())])


class Stream:
    """A folder in which a test stages batches, as executors do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Looks for more are 1 ns apart.
        self.now_ns = 0
        self.batches = Batches.below(locate(str(folder), {}))

    def stage(self, number: int, files: int = 2) -> None:
        """Stage a batch whose rows are 10 x number, 10 x number + 1 ...: one in each file."""
        folder = self.folder / "batches" / f"{number:012d}-{number:04x}"
        folder.mkdir(parents=True)
        sizes = {}
        for file in range(files):
            path = folder / f"{file}.arrow"
            batch = pa.record_batch({"n": pa.array([10 * number + file], pa.int64())})
            with pa.ipc.new_file(str(path), SCHEMA) as writer:
                writer.write_batch(batch)
            sizes[str(path)] = path.stat().st_size
        manifest = {"fingerprint": "", "files": sizes, "rows": files}
        (folder.parent / manifest_name(number)).write_text(json.dumps(manifest))

    def reader(
        self, states: Sequence[RestoredState] = (), *, index: int = 0, of: int = 1
    ) -> Reader:
        # Batches of its own: readers are in other processes.
        batches = Batches.below(locate(str(self.folder), {}))
        scan = replace(scan_of(batches, SCHEMA, [], 1), clock=lambda: self.now_ns)
        reader = StreamReader(scan, batches, f"{self.folder}/ended.json")
        return Reader(self, reader, states, index, of)

    @property
    def left(self) -> list[str]:
        """What is in the folder of batches."""
        return sorted(path.name for path in (self.folder / "batches").glob("*"))


class Reader:
    """A reader of one subtask, and the rows that it has given."""

    def __init__(
        self,
        stream: Stream,
        reader: StreamReader,
        states: Sequence[RestoredState],
        index: int,
        of: int,
    ) -> None:
        self.stream = stream
        self.reader = reader
        reader.open(OperatorContext("job", "rows", index, of, 128, 1))
        if states:
            reader.restore(states)
        self.rows: list[int] = []

    def read(self) -> list[int]:
        """Read what there is, looking twice."""
        for _ in range(20):
            self.stream.now_ns += 1
            for batch in self.reader.poll(100).batches:
                self.rows += batch["n"].to_pylist()
            self.reader.commit()
        return sorted(self.rows)

    def state(self) -> list[RestoredState]:
        return [RestoredState(s.name, s.kind, s.table()) for s in self.reader.snapshot()]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path)


def test_a_batch_goes_when_all_that_is_kept_has_read_it(stream: Stream) -> None:
    reader = stream.reader()
    stream.stage(0)
    stream.stage(1, files=0)
    reader.read()
    older = reader.state()
    stream.stage(2)
    assert reader.read() == [0, 1, 20, 21]
    stream.batches.remove_passed([])
    assert len(stream.left) == 6
    stream.batches.remove_passed([older, reader.state()])
    assert stream.batches.passed() == Passed(1, 2)
    assert stream.left == ["000000000002-0002", manifest_name(2)]
    stream.batches.remove_passed([reader.state()])
    assert stream.left == []
    assert stream.batches.passed() == Passed(2, 4)
    assert stream.batches.is_staged(2), "Spark may repeat it"
    assert not stream.batches.is_staged(3)


def test_what_one_of_the_subtasks_has_not_read_stays(stream: Stream) -> None:
    stream.stage(0, files=8)
    both = [stream.reader(index=index, of=2) for index in range(2)]
    assert both[0].read()
    stream.batches.remove_passed([[*both[0].state(), *both[1].state()]])
    assert len(stream.left) == 2
    assert sorted(both[0].read() + both[1].read()) == list(range(8))
    stream.batches.remove_passed([[*both[0].state(), *both[1].state()]])
    assert stream.left == []


def test_states_forget_removed_batches_and_nothing_is_read_twice(stream: Stream) -> None:
    reader = stream.reader()
    rows = []
    for number in range(50):
        stream.stage(number)
        reader.read()
        before = reader.state()
        stream.batches.remove_passed([before])
        # Both states of one attempt count, also for a reader in their place.
        assert len(stream.left) == 0
        reader = stream.reader(before if number % 2 else reader.state())
        assert reader.read() == []
        rows.append(sum(state.table.num_rows for state in reader.state()))
    assert max(rows) <= 3, "as many rows after 50 batches as after one"


def test_a_crash_between_the_note_and_the_removal_shows_nothing_again(stream: Stream) -> None:
    stream.stage(0)
    reader = stream.reader()
    reader.read()
    (stream.folder / "passed.json").write_text('{"batch": 0, "files": 2}')
    assert reader.read() == [0, 1]
    assert stream.reader(reader.state()).read() == []
    stream.batches.remove_passed([reader.state()])
    assert stream.left == []


@pytest.mark.parametrize("known", [0, 1])
def test_a_state_that_has_not_read_what_is_removed_is_refused(stream: Stream, known: int) -> None:
    reader = stream.reader()
    for number in range(known):
        stream.stage(number)
        reader.read()
    old = reader.state()
    for number in range(known, 3):
        stream.stage(number)
    reader.read()
    stream.batches.remove_passed([reader.state()])
    assert stream.reader(reader.state()).read() == []
    with pytest.raises(hr.JobFailed, match=r"^micro-batches up to 2 are removed, .*; restore a"):
        stream.reader(old)


def test_all_go_at_the_end_and_later_ones_are_read(stream: Stream) -> None:
    stream.stage(0)
    stream.stage(1)
    reader = stream.reader()
    reader.read()
    stream.batches.remove_all()
    assert stream.left == []
    stream.stage(2)
    again = stream.reader(reader.state())
    assert again.read() == [20, 21]
    assert ReadSoFar.of(again.state()).passed == Passed(1, 4)
