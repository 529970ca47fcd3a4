"""A simulated world: one job, its processes, its faults, from the first worker to the end of the job.

`simulate(seed)` draws everything from the seed: the job, its settings, the faults. The coordinator's process may die; somebody then starts
the job's program again with `restore="latest"`, as a user or a supervisor would, until it finishes. Faults stop at some time; if the job
has not finished a while later, that is a violation too.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.channels.credit import Debloat
from headrace.channels.events import CheckpointMode

from ..api.errors import HeadraceError
from ..coordination import decisions as d
from ..coordination.restore import Restore, resolve
from ..runtime.subtask import Limits
from .coordinator_process import CoordinatorProcess
from .coverage import Coverage
from .environment import Environment, Settings
from .faults import FaultProfile, Faults, draw_profile, no_faults
from .graphs import Graph, draw_graph, plan_of
from .network import Network
from .oracles import Violation, Watch, check_credit, check_output
from .reference import Reference, reference_of
from .scheduler import MILLISECOND_NS, SECOND_NS, Scheduler
from .sink import SinkSystem
from .storage import SimulatedStorage
from .worker_process import WorkerProcess
from .zombies import Zombies

#: After the faults have stopped, the job must finish in this time.
_REST_NS = 60 * SECOND_NS
_MODES = (
    *[CheckpointMode.ALIGNED] * 5,
    *[CheckpointMode.UNALIGNED] * 5,
    CheckpointMode.AT_LEAST_ONCE,
)
#: In which ways a job may fail, to be run again: a clock that jumps by an hour makes workers seem to be late; the very last commit
#: has no attempt after it that could repeat it; a coordinator's own claim whose outcome it never learned looks like a rival's.
_EXPLAINED = ("did not start in time", "the commit of chk-")
#: A run that takes more steps than this does not come to rest.
_STEPS_MAX = 60_000
#: Records that a run's tasks may handle in all, so that it stays short.
_ROWS_MAX = 1200
#: Credit is compared every so many steps: it looks at all channels.
_CREDIT_STEPS = 16


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run.

    Attributes:
        violation: which promise was broken; empty: none.
        trace_hash: the same for the same seed and the same code.
        virtual_ns: how long the job took.
    """

    seed: int
    violation: str
    trace_hash: str
    steps: int
    virtual_ns: int
    coverage: dict[str, int]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a seed stands for."""

    graph: Graph
    reference: Reference
    settings: Settings
    profile: FaultProfile


def draw_scenario(
    rng: random.Random, *, faults: bool = True, mode: CheckpointMode | None = None
) -> Scenario:
    """Draw job, settings and faults."""
    drawn = rng.choice(_MODES)
    mode = mode or drawn
    exact = mode is not CheckpointMode.AT_LEAST_ONCE
    graph = draw_graph(rng, keyed_totals=exact)
    reference = reference_of(graph)
    while reference.total_rows > _ROWS_MAX and graph.rows > 2:
        graph = replace(graph, rows=graph.rows // 2)
        reference = reference_of(graph)
    settings = _draw_settings(rng, graph, mode)
    return Scenario(graph, reference, settings, draw_profile(rng) if faults else no_faults())


def _draw_settings(rng: random.Random, graph: Graph, mode: CheckpointMode) -> Settings:
    slots = max(task.parallelism for task in graph.tasks)
    tasks = len(graph.tasks)
    # Settings that came later are drawn apart, so that a seed keeps its other draws.
    state = rng.getstate()
    alignment_timeout_ns = rng.choice((None, None, 0, 2, 20))
    debloat = rng.choice((None, Debloat(20 * MILLISECOND_NS, floor_bytes=16)))
    rng.setstate(state)
    slow = rng.sample(range(tasks), 1) if rng.random() < 0.3 else []
    timeout_ns = rng.choice((40, 300, 5000)) * MILLISECOND_NS
    # Where a checkpoint may well expire, expiring must not fail the attempt, or some jobs would never get anywhere.
    patient = timeout_ns > SECOND_NS
    return Settings(
        mode=mode,
        limits=Limits(
            buffer_bytes=rng.choice((100, 400, 2000)),
            window_bytes=rng.choice((64, 400, 2000)),
            queue_bytes_max=rng.choice((64, 400, 2000)),
            work_rows_max=rng.choice((1, 4, 16, 64)),
            work_target_ns=20 * MILLISECOND_NS,
            debloat=debloat,
            alignment_timeout_ns=None
            if alignment_timeout_ns is None
            else alignment_timeout_ns * MILLISECOND_NS,
        ),
        workers=rng.randint(1, slots),
        heartbeat_ns=50 * MILLISECOND_NS,
        heartbeat_timeout_ns=200 * MILLISECOND_NS,
        checkpoint_interval_ns=rng.choice((10, 30, 80)) * MILLISECOND_NS,
        checkpoint_timeout_ns=timeout_ns,
        tolerable_failures=rng.choice((0, 2)) if patient else 1_000_000,
        retain=rng.choice((1, 1, 2, 3)),
        concurrent=1,
        work_ns=(MILLISECOND_NS // 10, rng.choice((1, 5)) * MILLISECOND_NS),
        slow_tasks=frozenset(slow),
    )


class World:
    """One run. `run` it once."""

    def __init__(
        self, seed: int, scenario: Scenario, *, show: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.scenario = scenario
        self.scheduler = Scheduler(seed, show=show)
        self.coverage = Coverage()
        self.faults = Faults(scenario.profile, self.scheduler, self.coverage)
        sinks = SinkSystem()
        plan = plan_of(scenario.graph, self.scheduler.rng, sinks)
        self.env = Environment(
            scheduler=self.scheduler,
            faults=self.faults,
            coverage=self.coverage,
            network=Network(self.faults),
            storage=SimulatedStorage(),
            sinks=sinks,
            plan=plan,
            settings=scenario.settings,
            watch=Watch(plan, scenario.settings.mode),
        )
        self.coordinator: CoordinatorProcess | None = None
        #: Every worker process that may still live, in order of start.
        self.workers: list[WorkerProcess] = []
        self.finished = False
        self._generation = 0
        self.zombies = Zombies(self)

    def run(self) -> Report:
        """Run the job to its end, or to the first violation."""
        violation = ""
        try:
            self._start_coordinator()
            self._schedule_faults()
            self._run_to_end()
        except Violation as broken:
            violation = str(broken)
        except AssertionError as broken:
            frame = traceback.extract_tb(broken.__traceback__)[-1]
            violation = f"assertion in {frame.name} (line {frame.lineno}): {broken}"
        except Exception as broken:
            # A machine that raises anything else is broken too.
            frame = traceback.extract_tb(broken.__traceback__)[-1]
            violation = f"{broken!r} in {frame.name} (line {frame.lineno})"
        return Report(
            self.seed,
            violation,
            self.scheduler.trace_hash,
            self.scheduler.steps,
            self.scheduler.now_ns,
            dict(self.coverage.counts),
        )

    def _run_to_end(self) -> None:
        end_ns = self.faults.profile.until_ns + _REST_NS
        scheduler = self.scheduler
        while not self.finished:
            if scheduler.steps > _STEPS_MAX or scheduler.now_ns > end_ns:
                raise Violation(f"no progress: {self.describe()}")
            if not scheduler.step():
                raise Violation(f"nothing happens any more: {self.describe()}")
            if scheduler.steps % _CREDIT_STEPS == 0:
                self._check_credit()
        self._check_end()

    def describe(self) -> str:
        """Where everybody stands."""
        lines = [] if self.coordinator is None else [self.coordinator.machine.describe()]
        lines += [worker.machine.describe() for worker in self.workers if worker.alive]
        return "\n".join(lines)

    # --- processes ----------------------------------------------------------------------------------------------

    def _start_coordinator(self) -> None:
        """Somebody runs the job's program: it goes on where the last complete checkpoint is."""
        if self.finished:
            return
        self._generation += 1
        env = self.env
        process = CoordinatorProcess(
            env,
            self._generation,
            _latest(env),
            launch=self._launch,
            ended=self._coordinator_ended,
        )
        self.coordinator = process
        self.scheduler.trace(f"coordinator {self._generation} starts")
        process.start()

    def _coordinator_ended(self) -> None:
        assert self.coordinator is not None, "somebody ended"
        result = self.coordinator.result
        if result is not None and result.outcome is d.Outcome.FINISHED:
            self.finished = True
            return
        if result is not None and not any(known in result.reason for known in _EXPLAINED):
            raise Violation(f"the job failed, which none of the faults explains: {result.reason}")
        delay_ns = self.scheduler.rng.randint(1, 60) * MILLISECOND_NS
        self.scheduler.after(delay_ns, self._start_coordinator)

    def _launch(self, worker: int, number: int) -> None:
        coordinator = self.coordinator
        assert coordinator is not None, "a coordinator launches workers"

        def exited() -> None:
            delay_ns = self.scheduler.rng.randint(1, 20) * MILLISECOND_NS
            event = d.WorkerExited(worker, number, "its process ended")
            self.scheduler.after(delay_ns, lambda: coordinator.post(event))

        self.workers = [w for w in self.workers if w.alive]
        process = WorkerProcess(
            self.env,
            worker,
            number,
            coordinator=coordinator.address,
            address=(f"worker-{coordinator.generation}-{worker}-{number}", 1),
            ended=exited,
        )
        self.workers.append(process)

    # --- faults -------------------------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        profile = self.faults.profile
        for rate, happen in (
            (profile.worker_crashes, self._crash_worker),
            (profile.coordinator_crashes, self._crash_coordinator),
            (profile.severed, self._sever),
            (profile.half_open, self._half_open),
            (profile.partitions, self._partition),
            (profile.clock_jumps, self._jump_clock),
            (profile.zombies, self.zombies.knock),
            (profile.storage_full, self._fill_storage),
        ):
            self._schedule(rate, happen)
        self.scheduler.at(profile.until_ns, self._mend)

    def _schedule(self, rate: float, happen: Callable[[], None]) -> None:
        rng, until_ns = self.scheduler.rng, self.faults.profile.until_ns
        whole = int(rate)
        for _ in range(whole + (rng.random() < rate - whole)):
            # Most runs end long before the faults do: early ones meet more.
            self.scheduler.at(int(until_ns * rng.random() ** 2), happen)

    def _crash_worker(self) -> None:
        living = [worker for worker in self.workers if worker.alive]
        if not living:
            return
        host = self.scheduler.rng.random() < 0.4
        self.coverage.count("worker crashed with its host" if host else "worker crashed")
        self.scheduler.rng.choice(living).die(host=host, why="crashed")

    def _crash_coordinator(self) -> None:
        if self.coordinator is not None and self.coordinator.alive:
            self.coverage.count("coordinator crashed")
            self.coordinator.die(host=self.scheduler.rng.random() < 0.4, why="crashed")

    def _sever(self) -> None:
        number = self._some_connection()
        if number is not None:
            self.coverage.count("connection severed")
            self.env.network.sever(number)

    def _half_open(self) -> None:
        number = self._some_connection()
        if number is not None:
            self.coverage.count("link half open")
            self.env.network.half_open(number, self.scheduler.rng.randrange(2))

    def _partition(self) -> None:
        """Hold up some connections for a while."""
        duration_ns = self.scheduler.rng.randint(5, 400) * MILLISECOND_NS
        for number in self.env.network.open_connections:
            if self.scheduler.rng.random() < 0.4:
                self.coverage.count("links partitioned")
                self.env.network.partition(number, self.scheduler.now_ns + duration_ns)

    def _some_connection(self) -> int | None:
        numbers = self.env.network.open_connections
        return self.scheduler.rng.choice(numbers) if numbers else None

    def _jump_clock(self) -> None:
        processes = [p for p in (self.coordinator, *self.workers) if p is not None and p.alive]
        if processes:
            self.coverage.count("clock jumped")
            by_ns = self.scheduler.rng.choice((-3600, -2, 1, 3600)) * SECOND_NS
            self.scheduler.rng.choice(processes).jump_clock(by_ns)

    def _fill_storage(self) -> None:
        self.faults.fill_storage(self.scheduler.rng.randint(10, 200) * MILLISECOND_NS)

    def _mend(self) -> None:
        self.scheduler.trace("faults stop")
        for process in (self.coordinator, *self.workers):
            if process is not None and process.alive:
                process.mend_clock()

    # --- oracles ------------------------------------------------------------------------------------------------

    def _check_credit(self) -> None:
        """Compare both ends of the channels of the newest attempt that runs."""
        by_epoch: dict[int, dict] = {}  # type: ignore[type-arg]
        for worker in self.workers:
            attempt = worker.machine._attempt
            if worker.alive and attempt is not None:
                by_epoch.setdefault(attempt.epoch, {}).update(attempt.subtasks)
        for subtasks in by_epoch.values():
            window_bytes = self.scenario.settings.limits.window_bytes
            check_credit(subtasks, self.env.plan, window_bytes, self.coverage)

    def _check_end(self) -> None:
        parallelisms = {i: t.parallelism for i, t in enumerate(self.scenario.graph.tasks)}
        mode = self.scenario.settings.mode
        check_output(self.scenario.reference, self.env.sinks, mode, parallelisms)


def _latest(env: Environment) -> Restore:
    """What `restore="latest"` finds; without any complete checkpoint the job starts afresh."""
    try:
        return resolve(env.storage, env.plan.job, "latest")
    except HeadraceError:
        return resolve(env.storage, env.plan.job, None)


def simulate(
    seed: int,
    *,
    faults: bool = True,
    mode: CheckpointMode | None = None,
    show: Callable[[str], None] | None = None,
) -> Report:
    """Run the scenario of a seed."""
    scenario = draw_scenario(random.Random(f"scenario {seed}"), faults=faults, mode=mode)
    if show is not None:
        show(f"{scenario.graph.describe()}\n{scenario.settings}\n{scenario.profile}")
    return World(seed, scenario, show=show).run()
