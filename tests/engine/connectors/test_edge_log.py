"""The two ends of a logged edge; crashes of both are in tests/simulation/test_region_world.py."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.engine.connectors import edge_log
from headrace.engine.connectors.edge_log import (
    EdgeLogCommitter,
    EdgeLogReader,
    EdgeLogSink,
    EdgeLogSource,
    EdgeLogWriter,
)
from headrace.engine.contract.errors import CommitLost, HeadraceError
from headrace.engine.contract.operators import (
    OperatorContext,
    RestoredState,
    SourceStatus,
    Transaction,
)
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery.edge_log import Trimmed
from headrace.recovery.edge_log_files import EdgeLogFiles
from headrace.recovery.store import Content, StoreRejected

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def files() -> EdgeLogFiles:
    return EdgeLogFiles(MemoryStore(), "job", "log")


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def context(index: int = 0, parallelism: int = 1, epoch: int = 1) -> OperatorContext:
    return OperatorContext("job.region", "log", index, parallelism, 128, epoch)


def writer(files: EdgeLogFiles, index: int = 0, parallelism: int = 1) -> EdgeLogWriter:
    made = EdgeLogSink(files).writer()
    made.open(context(index, parallelism))
    return made


def reader(files: EdgeLogFiles, index: int = 0, parallelism: int = 1) -> EdgeLogReader:
    made = EdgeLogSource(files, SCHEMA).reader()
    made.open(context(index, parallelism))
    return made


def committer(files: EdgeLogFiles, epoch: int = 1) -> EdgeLogCommitter:
    made = EdgeLogSink(files).committer("job.region", "log")
    made.recover(0, [], epoch=epoch)
    made.go_on(0)
    return made


def states(*members: EdgeLogReader | EdgeLogWriter) -> list[RestoredState]:
    return [RestoredState(s.name, s.kind, s.table()) for m in members for s in m.snapshot()]


def write(made: EdgeLogWriter, *numbers: int) -> None:
    made.write(rows(*numbers))
    made.commit()


def read(made: EdgeLogReader) -> list[int]:
    """Everything that is there now."""
    found: list[int] = []
    while (polled := made.poll(2)).status is SourceStatus.MORE:
        found += [n for batch in polled.batches for n in batch.column("n").to_pylist()]
        made.commit()
    return found


def test_records_are_read_once_committed_and_no_earlier(files: EdgeLogFiles) -> None:
    commits, subject, follower = committer(files), writer(files), reader(files)
    write(subject, 1, 2, 3)
    transactions = subject.precommit(1)
    assert read(follower) == []
    commits.commit(7, transactions)
    assert read(follower) == [1, 2, 3]
    commits.commit(7, transactions)
    assert read(follower) == []


def test_large_records_become_several_pieces_of_one_checkpoint(
    files: EdgeLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_log, "_PIECE_BYTES", 20)
    commits, subject = committer(files), writer(files)
    for first in range(0, 9, 3):
        write(subject, first, first + 1, first + 2)
    transactions = subject.precommit(1)
    assert len(transactions) == 4, "three pieces, and an empty one with the event time"
    commits.commit(7, transactions)
    assert read(reader(files)) == list(range(9))


def test_an_idle_reader_looks_ever_less_often(files: EdgeLogFiles) -> None:
    committer(files)
    follower = reader(files)
    waits = [follower.poll(1).wait_ns for _ in range(12)]
    assert waits == sorted(waits)
    assert waits[0] <= 2_000_000 < waits[-1] == 200_000_000


def test_a_finished_log_ends_its_readers(files: EdgeLogFiles) -> None:
    commits, subject, follower = committer(files), writer(files), reader(files)
    write(subject, 1)
    commits.commit(1, subject.precommit(1))
    commits.finish()
    commits.finish()
    assert read(follower) == [1]
    assert follower.poll(1).status is SourceStatus.END


def test_a_commit_of_another_history_is_lost(files: EdgeLogFiles) -> None:
    subject = writer(files)
    write(subject, 1, 2)
    subject.precommit(1)
    write(subject, 3)
    with pytest.raises(CommitLost, match="records 2 to 3 of lane 0 behind 0"):
        committer(files).commit(2, subject.precommit(2))


def test_a_log_that_forgot_a_checkpoint_says_so(files: EdgeLogFiles) -> None:
    commits, subject = committer(files), writer(files)
    for checkpoint in (4, 5):
        write(subject, checkpoint)
        commits.commit(checkpoint, subject.precommit(checkpoint))
    files.trim(2)
    with pytest.raises(CommitLost, match="no longer knows checkpoint 4"):
        commits.go_on(4)


def test_lanes_without_a_writer_go_on_where_they_stopped(files: EdgeLogFiles) -> None:
    commits = committer(files)
    wide = [writer(files, index, 3) for index in range(3)]
    for index, each in enumerate(wide):
        write(each, index, 10 + index)
    commits.commit(1, [t for each in wide for t in each.precommit(1)])
    narrow = writer(files)
    narrow.restore(states(*wide))
    write(narrow, 20)
    commits.commit(2, narrow.precommit(2))
    again = [writer(files, index, 3) for index in range(3)]
    for each in again:
        each.restore(states(narrow))
        write(each, 30)
    commits.commit(3, [t for each in again for t in each.precommit(3)])
    assert sorted(read(reader(files))) == [0, 1, 2, 10, 11, 12, 20, 30, 30, 30]


def test_a_reader_whose_log_went_back_says_what_to_do(files: EdgeLogFiles) -> None:
    commits, subject, follower = committer(files), writer(files), reader(files)
    write(subject, 1)
    commits.commit(1, subject.precommit(1))
    read(follower)
    second = EdgeLogCommitter(files)
    second.recover(0, [], epoch=2)
    second.go_on(0)
    with pytest.raises(HeadraceError, match="was cut below what this region has read"):
        follower.poll(1)


def test_a_new_reader_of_a_trimmed_log_is_refused(files: EdgeLogFiles) -> None:
    commits, subject = committer(files), writer(files)
    for checkpoint in (1, 2, 3):
        write(subject, checkpoint)
        commits.commit(checkpoint, subject.precommit(checkpoint))
    files.trim(2)
    with pytest.raises(Trimmed, match="begin the whole job anew with fresh=True"):
        reader(files).poll(1)


def test_a_log_that_begins_anew_is_read_from_there(files: EdgeLogFiles) -> None:
    commits, subject = committer(files), writer(files)
    write(subject, 1)
    commits.commit(1, subject.precommit(1))
    again = committer(files, epoch=2)
    second = EdgeLogSink(files).writer()
    second.open(context(epoch=2))
    write(second, 5)
    again.commit(2, second.precommit(2))
    assert read(reader(files)) == [5]


def test_event_time_comes_behind_the_records_of_its_piece(files: EdgeLogFiles) -> None:
    commits, subject, follower = committer(files), writer(files), reader(files)
    write(subject, 1, 2, 3)
    subject.tell_event_time(77)
    commits.commit(1, subject.precommit(1))
    assert [follower.poll(2).watermark_ns for _ in range(2)] == [MIN_WATERMARK, 77]
    subject.tell_event_time(MAX_WATERMARK)
    commits.commit(2, subject.precommit(2))
    polled = follower.poll(2)
    assert (polled.batches, polled.watermark_ns, polled.split) == ((), MAX_WATERMARK, "lane-0")


def test_lanes_are_splits_until_they_are_read_to_their_end(files: EdgeLogFiles) -> None:
    commits = committer(files)
    pair = [writer(files, index, 2) for index in range(2)]
    for each in pair:
        write(each, 1)
    commits.commit(1, [t for each in pair for t in each.precommit(1)])
    commits.finish()
    follower = reader(files)
    assert follower.open_splits() == frozenset()
    follower.poll(1)
    assert follower.open_splits() == {"lane-1"}, "lane 0 has ended, lane 1 is to be read"
    assert follower.open_splits() is follower.open_splits()


def test_both_ends_can_be_shipped(tmp_path: Path) -> None:
    there = EdgeLogFiles(FsspecStore(str(tmp_path)), "job", "log")
    source = pickle.loads(pickle.dumps(EdgeLogSource(there, SCHEMA)))
    sink = pickle.loads(pickle.dumps(EdgeLogSink(there)))
    commits = sink.committer("job", "log")
    commits.recover(0, [], epoch=1)
    commits.go_on(0)
    subject = sink.writer()
    subject.open(context())
    write(subject, 4)
    commits.commit(1, subject.precommit(1))
    follower = source.reader()
    follower.open(context())
    assert read(follower) == [4]


def test_transactions_are_plain_data(files: EdgeLogFiles) -> None:
    subject = writer(files)
    write(subject, 1)
    (transaction,) = subject.precommit(3)
    assert isinstance(transaction, Transaction)
    assert transaction.id == "p0-e1-0-c3"
    assert transaction.payload["end"] == 1


def test_full_pieces_are_written_while_further_records_come(
    files: EdgeLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_log, "_PIECE_BYTES", 16)
    may_write = threading.Event()
    right = MemoryStore.put

    def slow(self: MemoryStore, path: str, data: Content) -> None:
        assert may_write.wait(10)
        right(self, path, data)

    monkeypatch.setattr(MemoryStore, "put", slow)
    commits = committer(files)
    made = writer(files)
    write(made, 0, 1)
    write(made, 2, 3)  # nobody waits for storage
    may_write.set()
    for n in range(4, 40, 2):
        write(made, n, n + 1)
    commits.commit(1, made.precommit(1))
    made.close()
    assert read(reader(files)) == list(range(40))


def test_a_piece_that_storage_refuses_fails_the_checkpoint(
    files: EdgeLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_log, "_PIECE_BYTES", 16)

    def refused(self: MemoryStore, path: str, data: Content) -> None:
        raise StoreRejected(path, "no space left")

    monkeypatch.setattr(MemoryStore, "put", refused)
    made = writer(files)
    write(made, 0, 1)
    with pytest.raises(StoreRejected):
        made.precommit(1)
    made.close()
