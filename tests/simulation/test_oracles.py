"""Each oracle speaks up when its promise is broken, and only then."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.forward import Forward
from headrace.engine.simulation.campaign.oracles import check_output
from headrace.engine.simulation.jobs.graphs import Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import reference_of, spread_paths
from headrace.engine.simulation.sink import Row, SinkSystem
from headrace.engine.simulation.watch import Violation

GRAPH = Graph((TaskSpec(Kind.SOURCE, 1), TaskSpec(Kind.SINK, 1, ((0, Forward()),))), 3, 1)
ALIGNED = CheckpointMode.ALIGNED


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
    check_output(reference_of(GRAPH), system, mode, splits=1)


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
        check_output(reference, shown(*records), ALIGNED, splits=1)


def test_after_a_rescale_a_forward_edge_loses_its_order_only_where_it_was_a_rebalance() -> None:
    system, reference = shown(row(1), row(0), row(2)), reference_of(GRAPH)
    with pytest.raises(Violation, match="record 0 of key 0 comes after 1"):
        check_output(reference, system, ALIGNED, splits=1, rescaled=True)
    assert spread_paths(GRAPH, [(1, 1), (3, 3)]) == set()
    spread = spread_paths(GRAPH, [(1, 1), (3, 2)])
    check_output(reference, system, ALIGNED, splits=1, rescaled=True, spread=spread)


def test_after_a_rescale_the_number_of_copies_is_open_but_none_may_be_missing() -> None:
    spread = TaskSpec(Kind.SINK, 3, ((0, Broadcast()),))
    reference = reference_of(replace(GRAPH, tasks=(GRAPH.tasks[0], spread)))
    copies = shown(row(0), row(1), row(1), row(2))
    check_output(reference, copies, ALIGNED, splits=1, rescaled=True)
    with pytest.raises(Violation, match="missing"):
        check_output(reference, copies, ALIGNED, splits=1)
    with pytest.raises(Violation, match="missing 1"):
        check_output(reference, shown(row(0), row(1)), ALIGNED, splits=1, rescaled=True)
