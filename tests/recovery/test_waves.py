"""Waves: which in-flight records the whole job replays before others."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.assignment import NewTask, assign
from headrace.recovery.metadata import CheckpointMetadata, EdgeInfo
from headrace.recovery.redistribution import NewEdge
from headrace.recovery.waves import Waves, first_wave, waves_of

from .assigned import GROUPS, checkpoint, info, snapshot
from .samples import changed

KEYED, ALONG = Hash(("key",), GROUPS), Forward()
#: read -> keyed -> relay -> sums -> out
CHAIN = (KEYED, ALONG, KEYED, ALONG)


def edge(index: int, partitioner: Partitioner) -> NewEdge:
    return NewEdge(f"{index}->{index + 1}/0", index, partitioner)


def inputs(parallelism: int, *chain: Partitioner) -> list[tuple[int, dict[int, NewEdge]]]:
    """The tasks of a chain, edge i leads from task i to task i + 1."""
    edges = [{}, *({i: edge(i, partitioner)} for i, partitioner in enumerate(chain))]
    return [(parallelism, into) for into in edges]


def handle(edge: int, wave: int = 0, side: str = "input") -> ChannelStateHandle:
    buffer = BufferHandle(f"chk-7/{edge}-{wave}", 8, 1, "0" * 16, 1, 0, 1)
    return ChannelStateHandle(edge, 0, 0, side, 0, [buffer], ended=False, wave=wave)


def held(*handles: ChannelStateHandle) -> CheckpointMetadata:
    """A checkpoint of the chain at parallelism 2."""
    tasks = [info(f"task {i}", 2) for i in range(len(CHAIN) + 1)]
    subtasks = [
        snapshot(task, 0, inflight=[h for h in handles if h.edge == task - 1])
        for task in range(len(tasks))
    ]
    edges = [
        EdgeInfo(f"{i}->{i + 1}/0", i, i + 1, p.name, list(p.key_columns))
        for i, p in enumerate(CHAIN)
    ]
    return replace(checkpoint(tasks, *subtasks), edges=edges)


def waves(
    *handles: ChannelStateHandle, parallelism: int = 3, chain: tuple[Partitioner, ...] = CHAIN
) -> Waves:
    return waves_of(held(*handles), inputs(parallelism, *chain))


def test_new_records_wait_for_records_in_flight_on_a_forward_edge() -> None:
    assert waves(handle(3)) == {(3, 0): 1}


def test_records_nearer_to_the_sinks_go_first_down_to_the_last_forward_edge() -> None:
    everything = [handle(index) for index in range(4)]
    assert waves(*everything) == {(3, 0): 3, (2, 0): 2, (1, 0): 1}
    assert waves(handle(0), handle(1)) == {(1, 0): 1}


def test_without_records_on_forward_edges_all_records_are_new() -> None:
    assert waves(handle(0), handle(2)) == {}


def test_at_the_same_parallelism_all_records_are_new() -> None:
    assert waves(*(handle(index) for index in range(4)), parallelism=2) == {}


def test_an_exchange_that_becomes_a_forward_edge_moves_keys_at_any_parallelism() -> None:
    chain = (KEYED, ALONG, ALONG, ALONG)
    assert waves(handle(2), parallelism=2, chain=chain) == {(2, 0): 1}


def test_no_order_is_kept_on_an_edge_that_spreads_records() -> None:
    chain = (KEYED, Rebalance(), KEYED, Rebalance())
    assert waves(handle(1), handle(3), chain=chain) == {}


def test_records_of_an_earlier_wave_stay_before_those_of_later_ones_at_any_parallelism() -> None:
    left = [handle(3, 2), handle(1, 1, "replay"), handle(3, 1)]
    for parallelism in (2, 3):
        found = waves(*left, parallelism=parallelism)
        assert found == {(3, 2): 3, (3, 1): 2, (1, 1): 1}


def test_new_records_wait_for_a_forward_edge_that_an_earlier_rescale_dealt_out() -> None:
    assert waves(handle(1, 1, "replay"), parallelism=2) == {(1, 1): 1}


def test_what_is_given_out_bears_its_wave() -> None:
    metadata = held(handle(0), handle(1))
    tasks = [_new_task(index, into) for index, (_, into) in enumerate(inputs(3, *CHAIN))]
    assigned = assign(metadata, tasks, GROUPS)
    found = {(h.edge, h.wave) for s in assigned for h in s.inflight}
    assert found == {(0, 0), (1, 1)}
    assert first_wave(assigned) == 1


def _new_task(index: int, into: Mapping[int, NewEdge]) -> NewTask:
    channels = [[(edge, producer) for edge in into for producer in range(3)] for _ in range(3)]
    return NewTask(info(f"task {index}", 3), channels, into)


def test_a_checkpoint_without_records_in_flight_has_only_new_ones_to_come() -> None:
    empty = ChannelStateHandle(0, 0, 0, "output", 0, [], ended=True, wave=1)
    assert first_wave([snapshot(0, 0, inflight=[empty])]) == 0
    assert first_wave(changed().subtasks) == 0


def test_a_loop_holds_no_edge_while_a_wave_goes_round() -> None:
    """What a wave sends round may come to any edge of the loop, those before the last that moved
    included.
    """
    tasks = inputs(3, *CHAIN)
    tasks[1][1][4] = NewEdge("1 (again)->1/0", 3, ALONG, feedback=True)
    found = waves_of(held(handle(1), handle(2), handle(0)), tasks)
    assert found == {(2, 0): 3, (1, 0): 2, (0, 0): 1}
    without = waves_of(held(handle(1), handle(2), handle(0)), inputs(3, *CHAIN))
    assert without == {(2, 0): 2, (1, 0): 1}
