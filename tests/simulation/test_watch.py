"""The watch speaks up when a channel, a replay or a cut breaks its promise, and only then."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from msgspec import structs

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.forward import Forward
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.operators.work import PollWork, ProcessWork
from headrace.engine.simulation.campaign.storage import SimulatedStorage
from headrace.engine.simulation.jobs.graph_plans import plan_of
from headrace.engine.simulation.jobs.graphs import Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.source import SCHEMA
from headrace.engine.simulation.sink import SinkSystem
from headrace.engine.simulation.watch import Violation, Watch
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.segment import SegmentBuilder, table_to_ipc
from headrace.recovery.layout import handle_path, segment_path
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot

GRAPH = Graph((TaskSpec(Kind.SOURCE, 1), TaskSpec(Kind.SINK, 1, ((0, Forward()),))), 3, 1)
SOURCE, SINK = SubtaskId(0, 0), SubtaskId(1, 0)
ALIGNED = CheckpointMode.ALIGNED


def batch(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": id, "key": 0, "path": 0, "by": 0, "nth": 0, "sender": 0} for id in ids], SCHEMA
    )


def watch(mode: CheckpointMode = ALIGNED) -> Watch:
    return Watch(plan_of(GRAPH, random.Random(0), SinkSystem()), mode)


def send(watched: Watch, *ids: int) -> None:
    watched.committed(1, SOURCE, PollWork(1), (((0, batch(*ids), 1),),))


def receive(watched: Watch, *ids: int) -> None:
    watched.committed(1, SINK, ProcessWork(0, (batch(*ids),), len(ids)), ())


def complete(watched: Watch) -> None:
    metadata = CheckpointMetadata("job", 1, 1, "", False, 0, 0, 16, [], [], [], [])
    watched.completed(metadata, SimulatedStorage())


def test_a_channel_hands_over_exactly_what_was_sent_in_order() -> None:
    watched = watch()
    send(watched, 0, 1, 2)
    receive(watched, 0, 1)
    receive(watched, 2)
    with pytest.raises(Violation, match=r"sent \[\], received \[3\]"):
        receive(watched, 3)


def test_a_checkpoint_of_many_files_or_of_a_long_time_is_noticed() -> None:
    watched = Watch(watch()._plan, ALIGNED, duration_max_ns=5)
    watched.cut(1, 1, SOURCE)
    watched.cut(1, 1, SINK)
    metadata = CheckpointMetadata("job", 1, 1, "", False, 0, 6, 16, [], [], [], [])
    with pytest.raises(Violation, match=r"at most"):
        watched.completed(metadata, SimulatedStorage())
    storage = SimulatedStorage()
    for name in ("metadata", "worker-0-e1.segment", "worker-1-e1.segment"):
        storage.put(f"job/chk-1/{name}", b"")
    watched.completed(structs.replace(metadata, duration_ns=5), storage)
    storage.put("job/chk-1/worker-1-e1.segment-2", b"")
    with pytest.raises(Violation, match="2 files of worker-1-e1"):
        watched.completed(metadata, storage)


def test_a_swapped_record_is_noticed() -> None:
    watched = watch()
    send(watched, 0, 1)
    with pytest.raises(Violation, match=str(ChannelId(0, 0, 0))):
        receive(watched, 1, 0)


def test_a_cut_without_anything_in_flight_is_consistent() -> None:
    watched = watch()
    send(watched, 0, 1)
    watched.cut(1, 1, SOURCE)
    receive(watched, 0, 1)
    watched.cut(1, 1, SINK)
    complete(watched)


def test_a_record_between_the_cuts_that_nobody_holds_is_a_violation() -> None:
    watched = watch()
    send(watched, 0, 1)
    receive(watched, 0)
    watched.cut(1, 1, SOURCE)
    watched.cut(1, 1, SINK)
    with pytest.raises(Violation, match=r"in flight \[1\], held \[\]"):
        complete(watched)


@pytest.mark.parametrize("mode", [ALIGNED, CheckpointMode.AT_LEAST_ONCE])
def test_only_at_least_once_lets_a_receiver_run_ahead(mode: CheckpointMode) -> None:
    watched = watch(mode)
    watched.cut(1, 1, SOURCE)
    send(watched, 0)
    receive(watched, 0)
    watched.cut(1, 1, SINK)
    if mode is ALIGNED:
        with pytest.raises(Violation, match="0 sent, 1 received"):
            complete(watched)
    else:
        complete(watched)


def test_a_complete_checkpoint_in_which_an_end_took_no_cut_is_a_violation() -> None:
    watched = watch()
    watched.cut(1, 1, SOURCE)
    with pytest.raises(Violation, match="took no cut"):
        complete(watched)


def test_a_broken_invariant_is_a_violation_and_a_lost_peer_is_not() -> None:
    watched = watch()
    watched.attempt_failed("worker 1: connection to worker 0 lost")
    with pytest.raises(Violation):
        watched.attempt_failed("worker 1: broken invariant: channel")


# --- replay ---------------------------------------------------------------------------------------


def held(store: SimulatedStorage, producer: int, *ids: int) -> ChannelStateHandle:
    """Records in flight in the channel of an old producer."""
    table = pa.Table.from_batches([batch(*ids)])
    segment = SegmentBuilder()
    blob = segment.append(*table_to_ipc(table))
    path = segment_path("job", 7, producer, 1)
    store.put(path, b"".join(segment.parts()))
    buffer = BufferHandle(
        handle_path("job", path), blob.offset, blob.length, blob.checksum, len(ids), 0, len(ids)
    )
    return ChannelStateHandle(0, producer, 0, "input", 0, [buffer], ended=False)


def replaying() -> Watch:
    """Two old channels are to be replayed: 0, 1, 2 and 10, 11."""
    store, watched = SimulatedStorage(), watch()
    handles = [held(store, 0, 0, 1, 2), held(store, 1, 10, 11)]
    watched.restored(1, SubtaskSnapshot(1, 0, False, [], [], [], handles), store)
    return watched


def test_old_channels_are_replayed_in_turns_each_in_order_and_then_comes_what_is_new() -> None:
    watched = replaying()
    send(watched, 5)
    for run in ((0, 1), (10, 11), (2,), (5,)):
        receive(watched, *run)


@pytest.mark.parametrize("runs", [[(1,)], [(0, 10)], [(5,)], [(0, 1, 2), (0,)]])
def test_a_replay_out_of_order_or_twice_or_overtaken_is_noticed(runs: list[tuple[int]]) -> None:
    watched = replaying()
    send(watched, 5)
    with pytest.raises(Violation, match="does not go on with the replay"):
        for run in runs:
            receive(watched, *run)


def test_a_checkpoint_that_forgets_what_is_left_to_replay_is_a_violation() -> None:
    watched = replaying()
    receive(watched, 0, 1)
    watched.cut(1, 1, SOURCE)
    watched.cut(1, 1, SINK)
    nothing = SubtaskSnapshot(1, 0, False, [], [], [])
    metadata = CheckpointMetadata("job", 1, 1, "", False, 0, 0, 16, [], [], [nothing], [])
    with pytest.raises(Violation, match=r"but left is .*\[2\].*\[10, 11\]"):
        watched.completed(metadata, SimulatedStorage())
