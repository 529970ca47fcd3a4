"""Batches go in, committed batches come out, each once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.file_sink import FileSink
from headrace.engine.connectors.memory import BatchesSource, BlackholeSink, CollectSink
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.connectors import Sink, Source
from headrace.engine.contract.errors import JobFailed, UserError
from headrace.engine.contract.operators import RestoredState, SinkWriter, SourceReader

Make = Callable[..., Any]


def batches(*sizes: int) -> list[pa.RecordBatch]:
    first = [sum(sizes[:index]) for index in range(len(sizes))]
    return [
        pa.record_batch({"n": pa.array(range(begin, begin + size), pa.int64())})
        for begin, size in zip(first, sizes, strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_every_row_is_given_out_once_over_restarts_at_any_parallelism(
    drive: Make, seed: int
) -> None:
    run = drive(BatchesSource(batches(10, 0, 25, 3, 40, 7)), seed=seed)
    for parallelism in (2, 1, 3, 8):
        run.some(parallelism, steps=4)
    run.rest(2)
    assert sorted(run.column("n")) == list(range(85))


def test_batches_are_dealt_out_in_turn(at: Make) -> None:
    reader = BatchesSource(batches(1, 1, 1)).reader()
    reader.open(at(1, 2))
    assert reader.poll(9).batches[0].column("n").to_pylist() == [1]


def test_no_batches_and_differing_schemas_are_the_users_mistake() -> None:
    with pytest.raises(UserError, match="at least one batch"):
        BatchesSource([])
    with pytest.raises(UserError, match="batch 1 has another schema"):
        BatchesSource([*batches(1), pa.record_batch({"x": [1]})])


def test_collected_records_appear_at_commit_and_once(at: Make) -> None:
    sink: CollectSink = pickle.loads(pickle.dumps(CollectSink()))
    writer, committer = sink.writer(), sink.committer("job", "out")
    writer.open(at(0, 1))
    for batch in batches(2, 3):
        writer.write(batch)
    transactions = writer.precommit(1)
    assert sink.table().num_rows == 0
    committer.commit(7, transactions)
    committer.commit(7, transactions)
    committer.recover(7, transactions)
    assert sink.table().column("n").to_pylist() == [0, 1, 2, 3, 4]
    assert writer.precommit(2) == ()
    committer.own("a", anew=False)
    assert sink.table().num_rows == 5, "a run from a checkpoint adds to it"
    committer.own("a", anew=True)
    assert sink.table().num_rows == 0


def test_batches_that_were_begun_are_open_until_they_are_done(at: Make) -> None:
    source = BatchesSource(batches(3, 3, 3))
    old = [source.reader(), source.reader()]
    for index, reader in enumerate(old):
        reader.open(at(index, 2))
        reader.poll(2)
        reader.commit()
    assert [reader.open_splits() for reader in old] == [{"0"}, {"1"}]
    reader = source.reader()
    reader.open(at(0, 1))
    reader.restore([RestoredState(s.name, s.kind, s.table()) for o in old for s in o.snapshot()])
    found = [reader.open_splits()]
    while (polled := reader.poll(2)).batches:
        found += [frozenset({polled.split}), reader.open_splits()]
    assert found == [{"0", "1"}, {"0"}, {"0", "1"}, {"1"}, {"1"}, {"2"}, {"2"}, {"2"}, {"2"}]


def test_what_was_not_precommitted_or_not_committed_never_appears(at: Make) -> None:
    sink = CollectSink()
    lost = sink.writer()
    lost.open(at(0, 1, epoch=1))
    lost.write(batches(5)[0])
    lost.precommit(1)
    lost.write(batches(5)[0])
    lost.close()
    sink.committer("job", "out").recover(0, [])
    assert sink.table().num_rows == 0


def test_a_second_run_with_the_same_epochs_is_not_taken_for_the_first(at: Make) -> None:
    sink = CollectSink()
    for _ in range(2):
        writer = sink.writer()
        writer.open(at(0, 1, epoch=1))
        writer.write(batches(2)[0])
        sink.committer("job", "out").commit(1, writer.precommit(1))
    assert sink.table().num_rows == 4


def test_records_that_were_damaged_in_the_checkpoint_fail_the_commit(at: Make) -> None:
    sink = CollectSink()
    writer = sink.writer()
    writer.open(at(0, 1))
    writer.write(batches(2)[0])
    [transaction] = writer.precommit(1)
    shorter = str(transaction.payload["arrow"])[:-8]
    payloads: list[dict[str, str | int]] = [{"arrow": shorter}, {"arrow": "?"}, {}]
    for payload in payloads:
        with pytest.raises(JobFailed, match="cannot be committed: its records are damaged"):
            sink.committer("job", "out").commit(7, [replace(transaction, payload=payload)])
    assert sink.table().num_rows == 0


def test_extension_types_are_refused_when_the_pipeline_is_built() -> None:
    schema = pa.schema([("id", pa.uuid())])
    with pytest.raises(UserError, match="'id' has the extension type"):
        CollectSink().check(schema)


def test_the_black_hole_counts_and_has_nothing_to_commit(at: Make) -> None:
    sink = BlackholeSink()
    writer = sink.writer()
    writer.open(at(0, 1))
    writer.write(batches(5)[0])
    assert writer.rows == 5
    assert writer.precommit(1) == ()
    assert sink.committer("job", "out") is None


def test_connectors_pickle_and_fit_the_seam(tmp_path: Path, at: Make) -> None:
    sources: list[Source] = [BatchesSource(batches(1)), SequenceSource(rows=1)]
    sinks: list[Sink] = [CollectSink(), BlackholeSink(), FileSink(str(tmp_path))]
    for source in sources:
        reader: SourceReader = pickle.loads(pickle.dumps(source)).reader()
        reader.open(at(0, 1))
        assert reader.poll(10).batches[0].schema == source.schema
    for sink in sinks:
        sink.check(batches(1)[0].schema)
        writer: SinkWriter = pickle.loads(pickle.dumps(sink)).writer()
        writer.open(at(0, 1))
        assert writer.precommit(1) == ()
        assert sink.delivery == "exactly-once"
