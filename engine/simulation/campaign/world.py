"""A simulated world: a job, its processes, its faults, from the first worker to the end of the job.

`simulate(seed)` draws everything from the seed: the job, its settings, the faults. The
coordinator's process may die; a supervisor then starts the job's program again with
`restore="latest"`, until the job finishes. Faults stop at some time; a job still unfinished a while
later is a violation too.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.channels.events import CheckpointMode

from ...contract.execution import ExecutionPlan, SubtaskId
from ...coordinator import coordinator_events as d
from ...worker.subtask import Subtask
from ..coverage import Coverage
from ..jobs.graph_plans import plan_of
from ..jobs.graphs import Graph, at_parallelism, changed
from ..jobs.reference import spread_paths
from ..jobs.versions import Ending, Rescale
from ..scheduler import MILLISECOND_NS, SECOND_NS, Scheduler
from ..sink import SinkSystem
from ..watch import Violation, Watch
from .claims import Claims, check_released
from .coordinator_process import CoordinatorProcess
from .disturbances import Disturbances
from .draining import Draining
from .environment import Environment, Settings
from .faults import FaultProfile, Faults
from .local_disk import LocalDisk
from .network import Network
from .oracles import (
    check_backlogs,
    check_budget,
    check_credit,
    check_failed,
    check_newest,
    check_output,
    check_retained,
)
from .orphans import Orphans
from .promptness import duration_max_ns
from .rescaling import Rescaling
from .savepoints import Savepoints
from .scenario import Scenario, draw_scenario
from .spilling import check_memory
from .storage import SimulatedStorage
from .worker_process import WorkerProcess

#: After the faults have stopped, the job must finish in this time.
_REST_NS = 60 * SECOND_NS
#: Failures after which a job may be run again: a clock that jumps by an hour makes workers seem to
#: be late; the very last commit has no later attempt that could repeat it; a coordinator's own
#: claim with an unknown outcome looks like a rival's.
_EXPLAINED = ("did not start in time", "the commit of chk-", "another coordinator")
#: After the job's end, all its processes must be gone in this time.
_FAREWELL_NS = 4 * SECOND_NS
#: A run that takes more steps than this does not come to rest.
_STEPS_MAX = 60_000
#: Credit is compared every so many steps: a comparison looks at all channels.
_CREDIT_STEPS = 16


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run.

    Attributes:
        violation: the broken promise; empty: none.
        trace_hash: equal for equal seeds and code.
        virtual_ns: the job's duration.
    """

    seed: int
    violation: str
    trace_hash: str
    steps: int
    virtual_ns: int
    coverage: dict[str, int]


class World:
    """A run. Call `run` once."""

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        *,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.scenario = scenario
        self.scheduler = Scheduler(seed, show=show)
        self.coverage = Coverage()
        self.faults = Faults(scenario.profile, self.scheduler, self.coverage)
        sinks = SinkSystem(has_tokens=seed % 2 == 1)
        plan = plan_of(scenario.graph, self.scheduler.rng, sinks)
        storage = SimulatedStorage()
        self.env = Environment(
            scheduler=self.scheduler,
            faults=self.faults,
            coverage=self.coverage,
            network=Network(self.faults),
            storage=storage,
            sinks=sinks,
            plan=plan,
            settings=scenario.settings,
            watch=_watch(plan, scenario.settings, scenario.profile),
            disk=LocalDisk(self.scheduler.rng, self.coverage),
            orphans=Orphans(storage, plan.job, self.coverage),
        )
        self.coordinator: CoordinatorProcess | None = None
        #: Every worker process that may still live, in order of start.
        self.workers: list[WorkerProcess] = []
        self.finished = False
        #: Its parallelism is another than at first.
        self.rescaled = False
        #: Parallelisms of all versions, by task.
        self.widths = [[task.parallelism for task in scenario.graph.tasks]]
        self.widths += [list(rescale.parallelism) for rescale in scenario.rescales]
        self._generation = 0
        self._ended_ns = 0
        #: Versions to come, and the version of the next start of the job.
        self._rescales = list(scenario.rescales)
        self._wanted: Rescale | None = None
        self._rescale_due = False
        #: The live rescale that is under way.
        self._rescaling: Rescaling | None = None
        #: Older coordinators that still live.
        self._rivals = 0
        #: Checkpoints completed by earlier runs of the present version.
        self._completed = 0
        self._disturbances = Disturbances(self)
        self._savepoints = Savepoints(self)
        self._draining = Draining(self)
        self._claims = Claims(self)

    def run(self) -> Report:
        """Run the job to its end, or to the first violation."""
        violation = ""
        try:
            self._start_coordinator()
            self._disturbances.schedule()
            self._savepoints.schedule()
            self._draining.schedule()
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
        finally:
            self.env.disk.close()
        return Report(
            self.seed,
            violation,
            self.scheduler.trace_hash,
            self.scheduler.steps,
            self._ended_ns or self.scheduler.now_ns,
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
            self._check_storage()
            if scheduler.steps % _CREDIT_STEPS == 0:
                self._check_credit()
        self._check_end()
        self._savepoints.check()
        self._claims.check()
        check_newest(self.env.storage, self.env.plan.job, self.coverage)
        self._ended_ns = scheduler.now_ns
        self._let_rest()
        if self.coordinator is not None and self.coordinator.has_left:
            # Otherwise the driver died after the job's last commit, and its undeleted files are
            # left to a next run.
            env = self.env
            check_retained(env.storage, env.plan.job, env.settings.retain, self.scenario.profile)
        check_released(self)

    def _let_rest(self) -> None:
        """Let the ended job's processes end: after a while none may be left."""
        scheduler = self.scheduler
        end_ns = max(scheduler.now_ns, self.faults.profile.until_ns) + _FAREWELL_NS
        while scheduler.now_ns < end_ns and scheduler.step():
            pass
        coordinator = [] if self.coordinator is None else [self.coordinator]
        left = [process.name for process in (*coordinator, *self.workers) if process.alive]
        self._check_storage()
        if left or self._rivals:
            raise Violation(
                f"the job has ended, and still alive are: {left}, {self._rivals} rivals"
            )

    @property
    def newest_graph(self) -> Graph:
        """The graph with the present version's edges, at the first version's parallelism."""
        graph = self.scenario.graph
        return changed(graph) if self.rescaled else graph

    def describe(self) -> str:
        """Where everybody stands."""
        machine = None if self.coordinator is None else self.coordinator.machine
        lines = [] if machine is None else [machine.describe()]
        lines += [worker.machine.describe() for worker in self.workers if worker.alive]
        return "\n".join(lines)

    def _checkpoint_completed(self, number: int) -> None:
        self._claims.completed(number)
        self._check_rescale()

    # --- versions of the job ----------------------------------------------------------------------

    def _check_rescale(self) -> None:
        coordinator = self.coordinator
        if not self._rescales or coordinator is None or self._rescale_due:
            return
        if self._completed + coordinator.completed >= self._rescales[0].checkpoints:
            self._rescale_due = True
            self.scheduler.after(self._rescales[0].delay_ns, self._rescale)

    def _rescale(self) -> None:
        """Take the job to another parallelism: the present version ends, and the next goes on from
        the newest checkpoint.
        """
        if self.finished or (self.coordinator is not None and self.coordinator.result is not None):
            return  # it has ended: whoever kills it while it tidies up starts nothing in its place
        self._wanted = self._rescales.pop(0)
        self.scheduler.trace(f"rescale: {self._wanted}")
        self.coverage.count(f"rescales, {self._wanted.ending.value}")
        coordinator = self.coordinator
        assert coordinator is not None, "some coordinator was started"
        match self._wanted.ending:
            case Ending.RESCALE if coordinator.machine is not None and coordinator.alive:
                after = self._driver(self._env_of(self._wanted))
                self._wanted = None
                self._rescaling = Rescaling(coordinator, after, self._take_over)
            case Ending.RESCALE:
                coordinator.die(host=False, why="stopped before it had begun")
            case Ending.STOP:
                coordinator.post(d.StopRequested(d.StopKind.WITH_CHECKPOINT))
            case Ending.SAVEPOINT:
                coordinator.post(self._savepoints.last(d.StopKind.WITH_CHECKPOINT))
            case Ending.CANCEL:
                coordinator.post(d.StopRequested(d.StopKind.NOW))
            case Ending.KILL:
                coordinator.die(host=self.scheduler.rng.random() < 0.4, why="killed")

    def _take_over(self, checkpoint: int) -> None:
        """The next version of a live rescale goes on from this checkpoint."""
        rescaling, self._rescaling = self._rescaling, None
        assert rescaling is not None, "some rescale is under way"
        self._adopt(rescaling.after.env)
        self.coordinator = rescaling.after
        self.coverage.count("rescales that took over")
        rescaling.after.start(checkpoint)
        self._check_rescale()

    def _next_version(self) -> None:
        """Note the version for the next start of the job."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._adopt(self._env_of(wanted))

    def _env_of(self, wanted: Rescale) -> Environment:
        graph = at_parallelism(changed(self.scenario.graph), wanted.parallelism)
        plan = plan_of(graph, self.scheduler.rng, self.env.sinks)
        settings = replace(self.env.settings, workers=wanted.workers)
        watch = _watch(plan, settings, self.scenario.profile)
        return replace(self.env, plan=plan, settings=settings, watch=watch)

    def _adopt(self, env: Environment) -> None:
        self.rescaled = True
        self._completed, self._rescale_due = 0, False
        self.env = env

    # --- processes --------------------------------------------------------------------------------

    def _start_coordinator(self) -> None:
        """Run the job's program again, from the last complete checkpoint."""
        if self.finished:
            return
        if self._rescaling is not None:
            self._rescaling.discard("another driver is started")
        self._next_version()
        process = self.coordinator = self._driver(self.env)
        self.scheduler.trace(f"coordinator {self._generation} starts")
        process.start()
        self._check_rescale()

    def _driver(self, env: Environment) -> CoordinatorProcess:
        self._generation += 1
        process = CoordinatorProcess(
            env,
            self._generation,
            launch=self._launch,
            ended=self._coordinator_ended,
            saved=self._savepoints.completed,
        )
        process.on_checkpoint = self._checkpoint_completed
        process.on_freeze = self._disturbances.freeze
        return process

    def _coordinator_ended(self, process: CoordinatorProcess) -> None:
        result = process.result
        if result is not None and "another coordinator" in result.reason:
            self.coverage.count("coordinator gave way to a rival")
        if self._rescaling is not None and process is self._rescaling.after:
            self._rescaling.ended(process)
            self._rescaling, self._rescale_due = None, False
            return
        if process is not self.coordinator:
            self._rivals -= 1
            return
        self._completed += process.completed
        process.completed = 0
        if result is not None and result.outcome is d.Outcome.FINISHED:
            self.finished = True
            if self._rescaling is not None:
                self._rescaling.discard("the job has finished")
            return
        reason = ""
        if result is not None and result.outcome is d.Outcome.FAILED:
            reason = result.reason
        if reason and not any(known in reason for known in _EXPLAINED):
            raise Violation(f"the job failed, which none of the faults explains: {reason}")
        if self._rescaling is not None:
            self._rescaling.ended(process)
        if self.coordinator is process:
            delay_ns = self.scheduler.rng.randint(1, 60) * MILLISECOND_NS
            self.scheduler.after(delay_ns, self._start_coordinator)

    def replace_coordinator(self, delay_ns: int) -> None:
        """Start another coordinator after this time, believing the present coordinator dead."""
        believed_dead = self.coordinator

        def start() -> None:
            if (
                self.coordinator is believed_dead
                and believed_dead is not None
                and believed_dead.alive
            ):
                self._rivals += 1
                self._start_coordinator()

        self.scheduler.after(delay_ns, start)

    def _launch(self, coordinator: CoordinatorProcess, worker: int, number: int) -> None:
        def exited() -> None:
            delay_ns = self.scheduler.rng.randint(1, 20) * MILLISECOND_NS
            event = d.WorkerExited(worker, number, "its process ended")
            self.scheduler.after(delay_ns, lambda: coordinator.post(event))

        self.workers = [w for w in self.workers if w.alive]
        process = WorkerProcess(
            coordinator.env,
            worker,
            number,
            coordinator=coordinator.address,
            address=(f"worker-{coordinator.generation}-{worker}-{number}", 1),
            ended=exited,
        )
        self.workers.append(process)

    # --- oracles ----------------------------------------------------------------------------------

    def _check_credit(self) -> None:
        """Compare both ends of the channels of the newest running attempt."""
        by_epoch: dict[int, tuple[ExecutionPlan, dict[SubtaskId, Subtask]]] = {}
        budget_bytes = self.scenario.settings.limits.budget_bytes
        for worker in self.workers:
            attempt = worker.machine._attempt
            if worker.alive and attempt is not None:
                check_budget(attempt.subtasks.values(), budget_bytes)
                limits = self.scenario.settings.limits
                check_memory(attempt.subtasks.values(), limits, self.coverage)
                _, subtasks = by_epoch.setdefault(attempt.epoch, (worker.env.plan, {}))
                subtasks.update(attempt.subtasks)
        for plan, subtasks in by_epoch.values():
            window_bytes = self.scenario.settings.limits.window_bytes
            check_credit(subtasks, plan, window_bytes, self.coverage)
            check_backlogs(subtasks, plan, self.scenario.settings.limits, self.coverage)

    def _check_storage(self) -> None:
        if self.env.storage.audit.broken:
            raise Violation(self.env.storage.audit.broken)

    def _check_end(self) -> None:
        scenario = self.scenario
        graph = scenario.graph
        reference = self._draining.reference()
        check_output(
            reference,
            self.env.sinks,
            scenario.settings.mode,
            splits=graph.splits,
            rescaled=self.rescaled,
            spread=spread_paths(graph, self.widths),
        )
        if not self.rescaled and not self.coverage.counts["restored from a checkpoint"]:
            check_failed(reference.failed, self.env.failed)
        for task in graph.tasks:
            self.coverage.count(f"tasks run to their end, {task.kind.value}")


def _watch(plan: ExecutionPlan, settings: Settings, profile: FaultProfile) -> Watch:
    highest_ns = duration_max_ns(plan, settings, profile)
    return Watch(plan, settings.mode, duration_max_ns=highest_ns)


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
        show("".join(f"{rescale}\n" for rescale in scenario.rescales))
    return World(seed, scenario, show=show).run()
