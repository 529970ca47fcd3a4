"""Consistency: metadata that contradicts itself is refused, and the refusal names the part."""

from __future__ import annotations

import msgspec
import pytest

from headrace.engine.contract.operators import StateKind
from headrace.recovery.consistency import STATE_KINDS, InvalidMetadata, check_consistency
from headrace.recovery.metadata import (
    CheckpointMetadata,
    EdgeInfo,
    TaskInfo,
)

from .samples import (
    CHANNEL,
    COMPRESSED,
    INPUT,
    MANIFEST,
    METADATA,
    OUTPUT,
    REPLAY,
    SCHEMA,
    SMALL,
    SOURCE,
    SST,
    SUM,
    TIMED,
    changed,
    with_buffer,
    with_database,
    with_handle,
    with_hold,
    with_in_flight,
    with_sent,
    with_shared,
)


@pytest.mark.parametrize("metadata", [METADATA, TIMED, COMPRESSED, SMALL])
def test_what_a_checkpoint_looks_like_is_consistent(metadata: CheckpointMetadata) -> None:
    check_consistency(metadata)


def test_the_kinds_of_state_are_those_that_operators_have() -> None:
    assert {kind.value for kind in StateKind} == STATE_KINDS


@pytest.mark.parametrize("watermarks", [[(-1, 0)], [(14, 0)], [(3, 0), (2, 5)], [(0, 2**63)]])
def test_watermarks_lie_within_their_records_in_order(watermarks: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidMetadata, match="watermarks"):
        check_consistency(with_in_flight(INPUT, watermarks=watermarks))


@pytest.mark.parametrize(
    ("metadata", "part"),
    [
        (changed(job=""), "job"),
        (changed(checkpoint=-1), "checkpoint"),
        (changed(checkpoint=2**63), "checkpoint"),
        (changed(epoch=-1), "epoch"),
        (changed(mode="exactly_once"), "mode"),
        (changed(created_ms=-1), "created_ms"),
        (changed(duration_ns=-1), "duration_ns"),
        (changed(max_parallelism=0), "max_parallelism"),
        (changed(max_parallelism=2**15 + 1), "max_parallelism"),
        (changed(tasks=[TaskInfo("read", [], [], 0)]), "tasks[0].parallelism"),
        (changed(tasks=[TaskInfo("read", [], [], 129)]), "tasks[0].parallelism"),
        (changed(edges=[EdgeInfo("e", 2, 1)]), "edges[0].producer"),
        (changed(edges=[EdgeInfo("e", 0, -1)]), "edges[0].consumer"),
        (changed(subtasks=[SOURCE]), "subtasks"),
        (changed(subtasks=[SOURCE, SUM, SUM]), "subtasks[2]"),
        (changed(subtasks=[msgspec.structs.replace(SOURCE, task=2)]), "subtasks[0].task"),
        (changed(subtasks=[msgspec.structs.replace(SOURCE, index=1)]), "subtasks[0].index"),
        (changed(subtasks=[msgspec.structs.replace(SOURCE, sync_ns=-1)]), "subtasks[0].sync_ns"),
        (with_hold(kind="weather"), "subtasks[1].holds[0]"),
        (with_hold(held_ns=-1), "subtasks[1].holds[0].held_ns"),
        (with_handle(operator="other"), "subtasks[1].states[0].operator"),
        (with_handle(kind="pickle"), "subtasks[1].states[0].kind"),
        (with_handle(path="../payments/chk-1/x"), "subtasks[1].states[0].path"),
        (with_handle(path="/etc/passwd"), "subtasks[1].states[0].path"),
        (with_handle(path="chk-7//x"), "subtasks[1].states[0].path"),
        (with_handle(offset=-1), "subtasks[1].states[0].offset"),
        (with_handle(length=-1), "subtasks[1].states[0].length"),
        (with_handle(offset=2**62, length=2**62), "subtasks[1].states[0].length"),
        (with_handle(rows=-1), "subtasks[1].states[0].rows"),
        (with_handle(checksum="0" * 15), "subtasks[1].states[0].checksum"),
        (with_handle(checksum="A" * 16), "subtasks[1].states[0].checksum"),
        (with_database(operator="other"), "subtasks[1].databases[0].operator"),
        (with_database(format="pickle"), "subtasks[1].databases[0].format"),
        (with_database(first_group=-1), "subtasks[1].databases[0].first_group"),
        (with_database(first_group=128), "subtasks[1].databases[0].first_group"),
        (with_database(end_group=129), "subtasks[1].databases[0].end_group"),
        (with_database(shared=[SST, SST]), "subtasks[1].databases[0].files[1].name"),
        (with_shared(path="../other/shared/x"), "subtasks[1].databases[0].files[1].path"),
        (with_shared(length=-1), "subtasks[1].databases[0].files[1].length"),
        (with_shared(checksum="5" * 15), "subtasks[1].databases[0].files[1].checksum"),
        *(
            (
                with_database(own=[msgspec.structs.replace(MANIFEST, name=name)]),
                "subtasks[1].databases[0].files[1].name",
            )
            for name in ("../x", "", ".", "..", "a/b", "x" * 256, "000012.sst")
        ),
        (
            with_database(schemas=[msgspec.structs.replace(SCHEMA, keys=0)]),
            "subtasks[1].databases[0].schemas[0].keys",
        ),
        (
            with_database(schemas=[msgspec.structs.replace(SCHEMA, path="/x")]),
            "subtasks[1].databases[0].schemas[0].path",
        ),
        (with_sent(edge=1), "subtasks[0].sent[0].edge"),
        (with_sent(producer=1), "subtasks[0].sent[0].producer"),
        (with_sent(consumer=1), "subtasks[0].sent[0].consumer"),
        (with_sent(position=-1), "subtasks[0].sent[0].position"),
        (
            changed(subtasks=[msgspec.structs.replace(SOURCE, received=[CHANNEL]), SUM]),
            "subtasks[0].received[0]",
        ),
        (
            changed(subtasks=[SOURCE, msgspec.structs.replace(SUM, sent=[CHANNEL])]),
            "subtasks[1].sent[0]",
        ),
        (with_in_flight(OUTPUT, side="outside"), "subtasks[0].inflight[0].side"),
        (with_in_flight(OUTPUT, side="input"), "subtasks[0].inflight[0]"),
        (with_in_flight(OUTPUT, side="replay"), "subtasks[0].inflight[0]"),
        (with_in_flight(OUTPUT, producer=1), "subtasks[0].inflight[0]"),
        (with_in_flight(OUTPUT, consumer=-1), "subtasks[0].inflight[0].consumer"),
        (with_in_flight(OUTPUT, consumer=128), "subtasks[0].inflight[0].consumer"),
        (with_in_flight(INPUT, side="output"), "subtasks[1].inflight[0]"),
        (with_in_flight(INPUT, consumer=1), "subtasks[1].inflight[0]"),
        (with_in_flight(INPUT, producer=-1), "subtasks[1].inflight[0].producer"),
        (with_in_flight(INPUT, edge=-1), "subtasks[1].inflight[0].edge"),
        (with_in_flight(INPUT, edge=1), "subtasks[1].inflight[0].edge"),
        (with_in_flight(INPUT, first=-1), "subtasks[1].inflight[0].first"),
        (with_in_flight(REPLAY, producer=128), "subtasks[1].inflight[0].producer"),
        (with_buffer(path="../payments/chk-1/x"), "subtasks[1].inflight[0].buffers[1].path"),
        (with_buffer(path="/etc/passwd"), "subtasks[1].inflight[0].buffers[1].path"),
        (with_buffer(path=""), "subtasks[1].inflight[0].buffers[1].path"),
        (with_buffer(offset=-1), "subtasks[1].inflight[0].buffers[1].offset"),
        (with_buffer(length=-1), "subtasks[1].inflight[0].buffers[1].length"),
        (with_buffer(offset=2**62, length=2**62), "subtasks[1].inflight[0].buffers[1].length"),
        (with_buffer(checksum="0" * 17), "subtasks[1].inflight[0].buffers[1].checksum"),
        (with_buffer(blob_rows=0), "subtasks[1].inflight[0].buffers[1].blob_rows"),
        (with_buffer(start=-1), "subtasks[1].inflight[0].buffers[1].start"),
        (with_buffer(start=8), "subtasks[1].inflight[0].buffers[1].start"),
        (with_buffer(rows=0), "subtasks[1].inflight[0].buffers[1].rows"),
        (with_buffer(start=1), "subtasks[1].inflight[0].buffers[1].rows"),
        (with_buffer(inflated=-1), "subtasks[1].inflight[0].buffers[1].inflated"),
        (with_buffer(inflated=255 * 320 + 1), "subtasks[1].inflight[0].buffers[1].inflated"),
        (with_buffer(skip=-1), "subtasks[1].inflight[0].buffers[1].skip"),
        (with_buffer(skip=9), "subtasks[1].inflight[0].buffers[1].skip"),
        (with_buffer(filters=[(0, 129, 0)]), "subtasks[1].inflight[0].buffers[1].filters[0]"),
        (with_buffer(filters=[(0, 0, 0)]), "subtasks[1].inflight[0].buffers[1].filters[0]"),
        (
            with_buffer(filters=[(0, 4, 2), (0, 2, 2)]),
            "subtasks[1].inflight[0].buffers[1].filters[1]",
        ),
        (with_buffer(filters=[(0, 4, -1)]), "subtasks[1].inflight[0].buffers[1].filters[0]"),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(
    metadata: CheckpointMetadata, part: str
) -> None:
    with pytest.raises(InvalidMetadata) as refused:
        check_consistency(metadata)
    assert str(refused.value).startswith(f"{part} must be ")
