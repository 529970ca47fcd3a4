"""Bugs that other systems had, put back into this engine: recovery, and recovery at another
parallelism. See `historical.py`.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from headrace.channels.events import Barrier, CheckpointMode
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.partitioner import Affinity, Redistribution
from headrace.engine.coordinator.workers import Workers
from headrace.engine.drivers import loading
from headrace.engine.simulation.campaign import worker_tasks
from headrace.engine.worker.subtask import Subtask
from headrace.engine.worker.subtask_events import EventArrived
from headrace.engine.worker.worker import Phase, Worker
from headrace.inflight import replay
from headrace.recovery import assignment, redistribution

from . import rescale_mutants
from .mutants import MUTANTS
from .planted import Catalogue, by_matrix

historical = Catalogue({})


# --- recovery -------------------------------------------------------------------------------------


@historical("FLINK-20654", 87)
def a_checkpoint_is_accepted_before_restored_data_were_consumed(
    patch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint was taken while restored channel state was still being read, and did not hold
    it.

    Here: such a checkpoint names nothing of what is left to replay.
    """
    MUTANTS["checkpoint_during_recovery_forgets_what_is_left_to_replay"](patch)


@historical("FLINK-40518", 33)
def a_checkpoint_in_recovery_is_neither_taken_nor_declined(patch: pytest.MonkeyPatch) -> None:
    """With unaligned checkpoints switched off, a checkpoint in a job restored with channel state
    hung, and so did the next.

    Here: a subtask that was restored with in-flight data swallows aligned barriers.
    """
    whole = Subtask.take

    def take(self: Subtask, event: Any, now_ns: int) -> Any:
        if isinstance(event, EventArrived) and isinstance(event.event, Barrier):
            aligned = event.event.mode is CheckpointMode.ALIGNED
            if aligned and self._spec.replay:
                return []
        return whole(self, event, now_ns)

    patch.setattr(Subtask, "take", take)


@historical("FLINK-16536", 0)
def new_data_overtake_restored_channel_state(patch: pytest.MonkeyPatch) -> None:
    """The requirement that new data of the producers must not overtake what is restored.

    Here: nothing holds them back.
    """
    MUTANTS["new_data_overtakes_replayed_data"](patch)


@historical("FLINK-38544", 43)
def records_are_lost_while_recovery_rewires_channels(patch: pytest.MonkeyPatch) -> None:
    """Records that came while a recovered task was being connected anew were lost.

    Here: frames of peers that run already are dropped by a worker that does not run yet.
    """
    whole = Worker._frames

    def frames(self: Worker, frames: Any) -> Any:
        return whole(self, frames) if self.phase is Phase.RUNNING else []

    patch.setattr(Worker, "_frames", frames)


@historical("quix-streams #1146", 103)
def a_recovery_that_is_interrupted_begins_anew(patch: pytest.MonkeyPatch) -> None:
    """A recovery that a rebalance interrupted did not go on from where it had come.

    Here: what of the stored records was replayed already is not subtracted when the rest is named
    again.
    """

    def rest(stored: Any) -> Any:
        return stored.handle

    patch.setattr(replay, "_rest", rest)


@historical("faust #74", 59)
def state_is_recovered_once_and_never_again(patch: pytest.MonkeyPatch) -> None:
    """After a rebalance in the midst of a recovery a table counted as recovered though it was not.

    Here: a subtask's state is restored once; the next time it is left empty.
    """
    whole = loading.read_restored
    seen: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()

    def states(plan: Any, id: Any, snapshot: Any, origin: Any, ahead: Any) -> Any:
        found = whole(plan, id, snapshot, origin, ahead)
        done = seen.setdefault(origin.store._storage, set())
        again = id in done and snapshot is not None
        if snapshot is not None:
            done.add(id)
        return {} if again else found

    patch.setattr(worker_tasks, "read_restored", states)


@historical("bytewax #181", 30)
def a_worker_that_never_spoke_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A worker that crashed before its first progress message vanished from the recovered cluster.

    Here: the cluster is complete when all that ever registered are there.
    """

    def complete(self: Workers) -> bool:
        return bool(self._members) and len(self._members) == len(self._newest)

    patch.setattr(Workers, "complete", property(complete))


# --- another parallelism --------------------------------------------------------------------------


@historical("FLINK-31963", 0, by_matrix)
def stateless_operators_are_passed_over_when_in_flight_data_are_dealt_out(
    patch: pytest.MonkeyPatch,
) -> None:
    """At another parallelism stateless operators between stateful ones were not given their
    in-flight data.

    Here: the same, at every recovery.
    """
    rescale_mutants.MUTANTS["in_flight_data_between_stateless_operators_is_skipped"](patch)


@historical("FLINK-35351", 7, by_matrix)
def in_flight_data_of_a_custom_partitioner_go_anywhere(patch: pytest.MonkeyPatch) -> None:
    """At another parallelism in-flight data before a custom partitioner's consumers were not given
    out by it.

    Here: they are dealt out like those of a rebalance.
    """
    patch.setattr(Custom, "affinity", Affinity.NONE)
    patch.setattr(Custom, "redistribution", Redistribution.SHARES)


@historical("FLINK-38267", 8, by_matrix)
def of_mixed_exchanges_only_the_first_is_dealt_out(patch: pytest.MonkeyPatch) -> None:
    """At another parallelism a task whose inputs were exchanged in different ways could not be
    recovered rightly.

    Here: all inputs are dealt out as the first one demands.
    """
    whole = redistribution.in_flight_of

    def in_flight(metadata: Any, index: int, edge: Any, *rest: Any, moved: bool) -> Any:
        mine = edge.partitioner
        first = kinds.setdefault(edge.key.partition("->")[2].partition("/")[0], mine)
        mixed = SimpleNamespace(
            name=mine.name,
            key_columns=mine.key_columns,
            parameters=mine.parameters,
            affinity=first.affinity,
            redistribution=first.redistribution,
        )
        return whole(metadata, index, replace(edge, partitioner=mixed), *rest, moved=moved)

    kinds: dict[str, Any] = {}
    snapshot = assignment._snapshot

    def snapshot_of(*arguments: Any, **told: Any) -> Any:
        kinds.clear()
        return snapshot(*arguments, **told)

    patch.setattr(assignment, "in_flight_of", in_flight)
    patch.setattr(assignment, "_snapshot", snapshot_of)


@historical("FLINK-19533", 0)
def restored_records_are_not_filtered(patch: pytest.MonkeyPatch) -> None:
    """What made virtual channels necessary: at another parallelism a channel's data belong to
    several consumers, each to some of it.

    Here: each consumer that may own some of the records takes them all.
    """
    patch.setattr(redistribution, "_filtered", lambda handles, parallelism, subtask: handles)
