"""A job with full queues that is killed in each recovery, before the replay is over, again and
again.

The job is a chain, so how much is left to be done at a checkpoint can be counted: each record has
so many edges before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.channels.partitioners.hash import Hash
from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.matrix import pair_scenario
from headrace.engine.simulation.campaign.scenario import Scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.engine.simulation.jobs.versions import Ending, Rescale
from headrace.engine.simulation.scheduler import MILLISECOND_NS
from headrace.engine.simulation.watch import Watch, ids_held
from headrace.engine.storage.snapshots import read_states
from headrace.recovery import catalog
from headrace.recovery.metadata import CheckpointMetadata

KEY = Hash(("key",), MAX_PARALLELISM)
#: So long a recovery may go on: some checkpoints, and a part of the replay.
LIFE_NS = 30 * MILLISECOND_NS
#: In flight at the first kill.
_FULL = 60
_WATCH_NS = MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class Kill:
    """What there was when a recovery was cut short.

    Attributes:
        epoch: of the newest checkpoint.
        left: how many steps of records there are to go from it.
        in_flight: how many records it holds in flight.
        replaying: the replay was not over.
    """

    epoch: int
    left: int
    in_flight: int
    replaying: bool


def scenario(seed: int, parallelism: Sequence[int]) -> Scenario:
    """The first parallelism, then those that the job goes on with, one after the other."""
    first = parallelism[0]
    tasks = (
        TaskSpec(Kind.SOURCE, first),
        TaskSpec(Kind.HISTORY, first, ((0, KEY),)),
        TaskSpec(Kind.SINK, first, ((1, KEY),)),
    )
    graph = Graph(tasks, rows=200, keys=8, splits=4)
    settings = pair_scenario(seed, first, first).settings
    # Queues hold much more than a recovery gets done.
    limits = replace(
        settings.limits, window_bytes=4000, queue_bytes_max=4000, work_rows_max=2, buffer_bytes=100
    )
    settings = replace(
        settings,
        limits=limits,
        workers=min(2, first),
        work_ns=(MILLISECOND_NS // 2, MILLISECOND_NS),
        slow_tasks=frozenset((1, 2)),
        checkpoint_interval_ns=10 * MILLISECOND_NS,
    )
    rescales = tuple(
        Rescale(Ending.KILL, 1_000_000, 0, (other,) * len(tasks), min(2, other))
        for other in parallelism[1:]
    )
    return Scenario(graph, reference_of(graph), settings, no_faults(), rescales)


class Interrupted(World):
    """One run, in which `kills_max` recoveries are cut short; every third time all workers die,
    else the driver.

    Attributes:
        kills: the first is that of the job with full queues.
    """

    def __init__(
        self, seed: int, scenario: Scenario, kills_max: int, life_ns: int = LIFE_NS
    ) -> None:
        super().__init__(seed, scenario)
        self._life_ns = life_ns
        self.kills: list[Kill] = []
        self._kills_max = kills_max
        self._began_ns: dict[int, int] = {}
        #: The attempt that was killed last: its workers may take a while to notice.
        self._killed = 0
        self.scheduler.after(_WATCH_NS, self._look)

    def _look(self) -> None:
        if self.finished or len(self.kills) == self._kills_max:
            return
        self.scheduler.after(_WATCH_NS, self._look)
        epoch = self._running()
        if epoch is None or epoch <= self._killed:
            return
        since_ns = self._began_ns.setdefault(epoch, self.scheduler.now_ns)
        metadata, _ = catalog.newest_valid(self.env.storage, self.env.plan.job)
        if metadata is None:
            return
        late = self.scheduler.now_ns - since_ns >= self._life_ns
        if late if self.kills else self._in_flight(metadata) >= _FULL:
            self._kill(metadata, epoch)

    def _running(self) -> int | None:
        """The epoch in which records are being worked on, as all workers see it."""
        epochs = {w.machine._attempt.epoch for w in self.workers if w.alive and w.machine._attempt}
        watch = self.env.watch
        assert isinstance(watch, Watch), "a campaign's"
        logs = watch._attempts
        running = [epoch for epoch in epochs if epoch in logs and logs[epoch].sent]
        return running[0] if len(epochs) == 1 and running else None

    def _kill(self, metadata: CheckpointMetadata, epoch: int) -> None:
        watch = self.env.watch
        assert isinstance(watch, Watch), "a campaign's"
        ends = watch._attempts[epoch].replaying.values()
        replaying = any(not end.is_over for end in ends)
        self._killed = epoch
        self.kills.append(
            Kill(metadata.epoch, self._left(metadata), self._in_flight(metadata), replaying)
        )
        if self._rescales and len(self.kills) % 2 == 0:
            self._rescale()
        elif len(self.kills) % 3 == 0:
            for worker in [worker for worker in self.workers if worker.alive]:
                worker.die(host=False, why="killed")
        else:
            assert self.coordinator is not None, "started"
            self.coordinator.die(host=True, why="killed")

    def _left(self, metadata: CheckpointMetadata) -> int:
        """Steps to go: two edges and the source are before an unread record, one edge before
        one that is in flight to the sink.
        """
        unread = self.scenario.graph.rows - self._read(metadata)
        flying = self._flying(metadata)
        return 3 * unread + 2 * flying[0] + flying[1]

    def _in_flight(self, metadata: CheckpointMetadata) -> int:
        return sum(self._flying(metadata))

    def _flying(self, metadata: CheckpointMetadata) -> list[int]:
        found = [0, 0]
        for handle in (h for s in metadata.subtasks for h in s.inflight):
            held = ids_held(self.env.storage, self.env.plan, handle.edge, handle.buffers)
            found[handle.edge] += len(held)
        return found

    def _read(self, metadata: CheckpointMetadata) -> int:
        places: dict[int, int] = {}
        for snapshot in metadata.subtasks:
            states = read_states(
                self.env.storage,
                metadata.job,
                [handle for handle in snapshot.states if handle.operator == "source0"],
                max_parallelism=metadata.max_parallelism,
                parallelism=metadata.tasks[snapshot.task].parallelism,
                subtask=snapshot.index,
            )
            for state in states.get("source0", []):
                places |= {row["split"]: row["next"] for row in state.table.to_pylist()}
        return sum(places.values())
