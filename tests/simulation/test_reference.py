"""The reference computes small jobs whose output can be said by heart."""

from __future__ import annotations

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import Record, Reference, reference_of

KEY = Hash(("key",), MAX_PARALLELISM)


def reference(*tasks: TaskSpec, keys: int = 1) -> Reference:
    return reference_of(Graph((TaskSpec(Kind.SOURCE, 1), *tasks), 4, keys))


def test_records_pass_a_map_with_their_path() -> None:
    found = reference(
        TaskSpec(Kind.MAP, 1, ((0, Forward()),)), TaskSpec(Kind.SINK, 1, ((1, Forward()),))
    )
    assert found.sinks == {"sink2": {Record(id, 0, 2, 0): 1 for id in range(4)}}
    assert found.ordered == {2}


def test_a_broadcast_copies_and_keeps_no_order() -> None:
    found = reference(TaskSpec(Kind.SINK, 3, ((0, Broadcast()),)))
    assert set(found.sinks["sink1"].values()) == {3}
    assert found.ordered == set()


def test_a_rebalance_keeps_no_order() -> None:
    assert reference(TaskSpec(Kind.SINK, 2, ((0, Rebalance()),))).ordered == set()


def test_a_drop_drops_by_id() -> None:
    found = reference(
        TaskSpec(Kind.DROP, 1, ((0, Forward()),)), TaskSpec(Kind.SINK, 1, ((1, Forward()),))
    )
    assert sorted(record.id for record in found.sinks["sink2"]) == [0, 1, 2]


def test_totals_are_one_record_a_key() -> None:
    found = reference(TaskSpec(Kind.TOTALS, 1, ((0, KEY),)), TaskSpec(Kind.SINK, 1, ((1, KEY),)))
    assert found.sinks["sink2"] == {Record((0 + 1 + 2 + 3) * 31 + 4, 0, 2, 0): 1}


def test_a_history_marks_its_records_and_counts_its_places() -> None:
    found = reference(TaskSpec(Kind.HISTORY, 1, ((0, KEY),)), TaskSpec(Kind.SINK, 1, ((1, KEY),)))
    assert {record.by for record in found.sinks["sink2"]} == {1}
    assert found.places == {(1, 0): 4}


def test_two_routes_of_one_path_keep_no_order() -> None:
    found = reference(TaskSpec(Kind.SINK, 1, ((0, Forward()), (0, Forward()))))
    assert set(found.sinks["sink1"].values()) == {2}
    assert found.ordered == set()
