"""Each oracle speaks up when its promise is broken, and only then."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from msgspec import structs

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners import Forward
from headrace.engine.runtime.work import PollWork, ProcessWork, SubtaskId
from headrace.engine.simulation.graphs import Graph, Kind, TaskSpec, plan_of
from headrace.engine.simulation.oracles import Violation, Watch, check_output
from headrace.engine.simulation.reference import reference_of
from headrace.engine.simulation.sink import Row, SinkSystem
from headrace.engine.simulation.source import SCHEMA
from headrace.engine.simulation.storage import SimulatedStorage
from headrace.recovery.metadata import CheckpointMetadata

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


# --- output -----------------------------------------------------------------------------------------------------------


def shown(*rows: Row) -> SinkSystem:
    system = SinkSystem()
    system.begin("t", "sink1", 0)
    system.write("t", list(rows))
    system.prepare("t")
    system.commit("t")
    return system


def row(id: int, nth: int = 0) -> Row:
    return (id, 0, 0, 0, nth, 0)


def check(system: SinkSystem, mode: CheckpointMode = ALIGNED) -> None:
    check_output(reference_of(GRAPH), system, mode, {0: 1, 1: 1})


def test_the_expected_output_passes() -> None:
    check(shown(row(0), row(1), row(2)))


def test_losses_and_repeats_are_named() -> None:
    with pytest.raises(Violation, match=r"missing 1 .*extra 1 "):
        check(shown(row(0), row(0), row(1)))


def test_repeats_are_no_violation_at_least_once_and_losses_are() -> None:
    check(shown(row(0), row(0), row(1), row(2)), CheckpointMode.AT_LEAST_ONCE)
    with pytest.raises(Violation, match="missing 1"):
        check(shown(row(0), row(1)), CheckpointMode.AT_LEAST_ONCE)


def test_records_of_a_key_out_of_order_are_a_violation() -> None:
    with pytest.raises(Violation, match="record 0 of key 0 comes after 1"):
        check(shown(row(1), row(0), row(2)))


def test_an_open_transaction_at_the_end_is_a_violation() -> None:
    system = shown(row(0), row(1), row(2))
    system.begin("left", "sink1", 0)
    with pytest.raises(Violation, match="left"):
        check(system)


def test_two_records_at_one_place_of_a_list_are_a_violation() -> None:
    reference = replace(reference_of(GRAPH), places=Counter({(9, 0): 3}), ordered=set())
    records = [(id, 0, 0, 9, nth, 0) for id, nth in ((0, 1), (1, 2), (2, 2))]
    reference.sinks["sink1"] = Counter(
        {type(r)(r.id, 0, 0, 9): 1 for r in reference.sinks["sink1"]}
    )
    with pytest.raises(Violation, match="share place 2"):
        check_output(reference, shown(*records), ALIGNED, {0: 1, 1: 1})
