"""A simulated world: one job, its processes, its faults, from the first worker to the end of the job.

`simulate(seed)` draws everything from the seed: the job, its settings, the faults. The coordinator's process may die; somebody then starts
the job's program again with `restore="latest"`, as a user or a supervisor would, until it finishes. Faults stop at some time; if the job
has not finished a while later, that is a violation too.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from headrace.channels.events import CheckpointMode

from ..api.errors import HeadraceError
from ..coordination import decisions as d
from ..coordination.restore import Restore, resolve
from .coordinator_process import CoordinatorProcess
from .coverage import Coverage
from .disturbances import Disturbances
from .environment import Environment
from .faults import Faults
from .graphs import plan_of
from .network import Network
from .oracles import Violation, Watch, check_credit, check_output
from .promptness import duration_max_ns
from .scenario import Scenario, draw_scenario
from .scheduler import MILLISECOND_NS, SECOND_NS, Scheduler
from .sink import SinkSystem
from .storage import SimulatedStorage
from .worker_process import WorkerProcess

#: After the faults have stopped, the job must finish in this time.
_REST_NS = 60 * SECOND_NS
#: In which ways a job may fail, to be run again: a clock that jumps by an hour makes workers seem to be late; the very last commit
#: has no attempt after it that could repeat it; a coordinator's own claim whose outcome it never learned looks like a rival's.
_EXPLAINED = ("did not start in time", "the commit of chk-")
#: A run that takes more steps than this does not come to rest.
_STEPS_MAX = 60_000
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
            watch=Watch(
                plan,
                scenario.settings.mode,
                duration_max_ns=duration_max_ns(plan, scenario.settings, scenario.profile),
            ),
        )
        self.coordinator: CoordinatorProcess | None = None
        #: Every worker process that may still live, in order of start.
        self.workers: list[WorkerProcess] = []
        self.finished = False
        self._generation = 0
        self._disturbances = Disturbances(self)

    def run(self) -> Report:
        """Run the job to its end, or to the first violation."""
        violation = ""
        try:
            self._start_coordinator()
            self._disturbances.schedule()
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
