"""Bugs of rescaling put back on purpose, like those of `mutants.py`."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.coordinator import checkpoint_metadata
from headrace.inflight.replay import Replay
from headrace.recovery import assignment, redistribution, waves

from .mutants import Mutant

MUTANTS: dict[str, Mutant] = {}


def mutant(function: Mutant) -> Mutant:
    """Enter a mutant under its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def in_flight_data_between_stateless_operators_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """FLINK-31963."""
    whole = redistribution.in_flight_of

    def in_flight(metadata: Any, index: int, edge: Any, *rest: Any, moved: bool) -> Any:
        ends = [e for e in metadata.edges if e.key == edge.key]
        stateful = any(metadata.tasks[e.consumer].stateful for e in ends)
        return whole(metadata, index, edge, *rest, moved=moved) if stateful else []

    patch.setattr(assignment, "in_flight_of", in_flight)


@mutant
def records_in_flight_of_a_changed_partitioner_are_dropped(patch: pytest.MonkeyPatch) -> None:
    whole = redistribution.in_flight_of

    def in_flight(metadata: Any, index: int, edge: Any, *rest: Any, moved: bool) -> Any:
        old = redistribution.old_edges(metadata, edge)
        if old and redistribution.is_repartitioned(metadata, old, edge):
            return []
        return whole(metadata, index, edge, *rest, moved=moved)

    patch.setattr(assignment, "in_flight_of", in_flight)


@mutant
def forward_edges_are_replayed_without_waves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(assignment, "waves_of", lambda *_: {})


@mutant
def records_in_channels_amid_the_waves_count_as_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint_metadata, "_in_wave", lambda snapshot, wave: snapshot)


@mutant
def all_edges_are_replayed_in_one_wave(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waves, "_depths", lambda inputs: [0] * len(inputs))


@mutant
def replays_of_later_waves_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    whole = Replay.__init__

    def init(self: Any, handles: Any, ports: Any, *, wave: int = 0, **kwargs: Any) -> None:
        whole(self, handles, ports, **kwargs)

    patch.setattr(Replay, "__init__", init)
    patch.setattr(Replay, "wave_began", lambda self, wave: None)
