"""A simulated world for a user's job: its driver, its workers, and what a test does to them.

The processes, the network and the storage are those of the simulation's campaigns, and drive the
product's machines. The campaign's world draws its job and judges the engine; this one is given a
job, and judges nothing: who holds it looks at the output.

The user's program is restarted when its driver dies, from the newest checkpoint. A call of the
user's code that raises ends the world with that error: in virtual time it would raise for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..contract.errors import HeadraceError, JobFailed, UserCodeError, UserError
from ..contract.execution import ExecutionPlan, SubtaskId
from ..coordinator import coordinator_events as d
from ..coordinator.rules import Phase
from ..operators.work import WorkDone
from ..simulation.campaign.coordinator_process import CoordinatorProcess
from ..simulation.campaign.environment import Environment, Settings
from ..simulation.campaign.faults import FaultProfile, Faults
from ..simulation.campaign.local_disk import LocalDisk
from ..simulation.campaign.network import Network
from ..simulation.campaign.orphans import Orphans
from ..simulation.campaign.rescaling import Rescaling
from ..simulation.campaign.storage import SimulatedStorage
from ..simulation.campaign.worker_process import WorkerProcess
from ..simulation.coverage import Coverage
from ..simulation.scheduler import MILLISECOND_NS, Scheduler
from ..simulation.sink import SinkSystem, TransactionStatus
from ..simulation.watch import Observer
from .simulated_program import SimulatedProgram

#: A job that takes more steps, or more virtual time, does not come to its end.
_STEPS_MAX = 2_000_000
_END_NS = 3600 * 10**9


class JobWorld:
    """A user's job in virtual time.

    Args:
        settings: the job's; `workers` at most one for each slot.

    Attributes:
        program: what each process loads.
        parallelism: of operators that state none, now.
        finished: the job has come to its end.
        polled: records that sources have handed out, in all attempts.
        restarts: attempts that failed.
        saved: {request: number of the checkpoint}, of checkpoints asked for.
        told: faults so far, in words, with their times.
    """

    def __init__(
        self,
        seed: int,
        program: SimulatedProgram,
        settings: Settings,
        profile: FaultProfile,
        *,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.program = program
        self.parallelism = program.parallelism
        self.scheduler = Scheduler(seed, show=show)
        self.coverage = Coverage()
        self.faults = Faults(profile, self.scheduler, self.coverage)
        self.sinks = SinkSystem()
        plan = program.load(self.parallelism, self.sinks)
        storage = SimulatedStorage()
        self.env = Environment(
            scheduler=self.scheduler,
            faults=self.faults,
            coverage=self.coverage,
            network=Network(self.faults),
            storage=storage,
            sinks=self.sinks,
            plan=plan,
            settings=_fitted(settings, program, plan),
            watch=_Ear(self),
            disk=LocalDisk(self.scheduler.rng, self.coverage),
            orphans=Orphans(storage, plan.job, self.coverage),
        )
        self.finished = False
        self.polled = 0
        self.restarts = 0
        self.saved: dict[int, int] = {}
        self.told: list[str] = []
        self.coordinator: CoordinatorProcess | None = None
        self.workers: list[WorkerProcess] = []
        self._failed: HeadraceError | None = None
        self._generation = 0
        #: {generation of a driver: parallelism}
        self._parallelisms: dict[int, int] = {}
        self._rescaling: Rescaling | None = None
        self._wanted: int | None = None
        self._start()

    # --- time -------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let the next thing happen.

        Raises: UserCodeError or UserError of the user's code; JobFailed.
        """
        scheduler = self.scheduler
        if scheduler.steps > _STEPS_MAX or scheduler.now_ns > _END_NS:
            raise JobFailed(
                f"job {self.program.job.name!r} has not ended after"
                f" {scheduler.now_ns / 10**9:.0f} s of virtual time and {scheduler.steps} steps;"
                " give sources that never end their records with sources="
            )
        # Whoever waits for the clock has something to do, so this ends only with the job.
        if not scheduler.step() and not self.finished:
            raise JobFailed(f"job {self.program.job.name!r}: nothing happens any more")
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Remove the files of the run."""
        self.env.disk.close()

    @property
    def is_running(self) -> bool:
        """Records are worked on: the attempt has begun, and nobody is stopping it."""
        coordinator = self.coordinator
        if coordinator is None or coordinator.machine is None or not coordinator.alive:
            return False
        return coordinator.machine.phase is Phase.RUNNING and self._rescaling is None

    # --- what a test does -------------------------------------------------------------------------

    def crash_worker(self, number: int | None = None) -> bool:
        """Kill a worker; None: any. False: it is not alive now."""
        living = [w for w in self.workers if w.alive and (number is None or w.number == number)]
        if not living or self.finished:
            return False
        victim = self.scheduler.rng.choice(living)
        self._tell(f"worker {victim.number} crashed")
        victim.die(host=False, why="crashed")
        return True

    def crash_driver(self) -> bool:
        """Kill the driver, which is started again. False: it is not alive now."""
        if self.coordinator is None or not self.coordinator.alive or self.finished:
            return False
        self._tell("the driver crashed")
        self.coordinator.die(host=False, why="crashed")
        return True

    def sever(self) -> None:
        """Break a connection."""
        numbers = self.env.network.open_connections
        if numbers and not self.finished:
            self._tell("a connection broke")
            self.env.network.sever(self.scheduler.rng.choice(numbers))

    def rescale(self, parallelism: int) -> bool:
        """Begin to take the job to another parallelism. False: not now.

        It goes on from a last checkpoint of the present parallelism; where that fails, it goes on
        as before.
        """
        coordinator = self.coordinator
        busy = self._rescaling is not None or self._wanted is not None
        if self.finished or busy or coordinator is None or not coordinator.alive:
            return False
        if coordinator.machine is None or coordinator.result is not None:
            return False
        self._tell(f"rescaled from {self.parallelism} to {parallelism}")
        self._wanted = parallelism
        after = self._driver(self._at(parallelism), parallelism)
        self._rescaling = Rescaling(coordinator, after, self._take_over)
        return True

    def request(self, number: int) -> None:
        """Ask the driver for a checkpoint; `saved` has it when it is complete."""
        if self.coordinator is not None:
            self.coordinator.post(d.CheckpointRequested(number))

    @property
    def is_committed(self) -> bool:
        """No transaction waits for its commit."""
        waiting = TransactionStatus.PREPARED
        return all(t.status is not waiting for t in self.sinks.transactions.values())

    def output(self, sink: str) -> list[dict[str, object]]:
        """The visible records of a sink, in the order of commits. Raises: UserError."""
        columns = self.program.columns
        if sink not in columns:
            raise UserError(f"the job has no sink {sink!r}; it has {', '.join(columns)}")
        return [dict(zip(columns[sink], row, strict=True)) for _, row in self.sinks.rows(sink)]

    # --- processes --------------------------------------------------------------------------------

    def fail(self, error: HeadraceError) -> None:
        """End the world with this error."""
        self._failed = self._failed or error

    def _tell(self, what: str) -> None:
        self.told.append(f"{what} at {self.scheduler.now_ns / MILLISECOND_NS:.1f} ms")

    def _start(self) -> None:
        """Run the user's program, from the newest complete checkpoint."""
        if self.finished:
            return
        self._discard("another driver is started")
        process = self.coordinator = self._driver(self.env, self.parallelism)
        process.start()

    def _driver(self, env: Environment, parallelism: int) -> CoordinatorProcess:
        self._generation += 1
        self._parallelisms[self._generation] = parallelism
        return CoordinatorProcess(
            env,
            self._generation,
            launch=self._launch,
            ended=self._ended,
            saved=self.saved.__setitem__,
        )

    def _ended(self, process: CoordinatorProcess) -> None:
        rescaling = self._rescaling
        if rescaling is not None and process is rescaling.after:
            self._rescaling = self._wanted = None
            rescaling.ended(process)
            return
        if process is not self.coordinator:
            return
        result = process.result
        if result is not None and result.outcome is d.Outcome.FINISHED:
            self.finished = True
            self._discard("the job has finished")
            return
        if result is not None and result.outcome is d.Outcome.FAILED:
            self.fail(JobFailed(f"job {self.program.job.name!r} failed: {result.reason}"))
            return
        if rescaling is not None:
            rescaling.ended(process)
        if self.coordinator is process:
            delay_ns = self.scheduler.rng.randint(1, 20) * MILLISECOND_NS
            self.scheduler.after(delay_ns, self._start)

    def _discard(self, why: str) -> None:
        if self._rescaling is not None:
            self._rescaling.discard(why)
            self._rescaling = self._wanted = None

    def _take_over(self, checkpoint: int) -> None:
        """The next parallelism goes on from this checkpoint."""
        rescaling, self._rescaling = self._rescaling, None
        assert rescaling is not None, "a rescale is under way"
        assert self._wanted is not None, "a rescale is under way"
        self.parallelism, self._wanted = self._wanted, None
        self.env, self.coordinator = rescaling.after.env, rescaling.after
        rescaling.after.start(checkpoint)

    def _at(self, parallelism: int) -> Environment:
        plan = self.program.load(parallelism, self.sinks)
        return replace(self.env, plan=plan, settings=_fitted(self.env.settings, self.program, plan))

    def _launch(self, coordinator: CoordinatorProcess, worker: int, number: int) -> None:
        def exited() -> None:
            delay_ns = self.scheduler.rng.randint(1, 5) * MILLISECOND_NS
            event = d.WorkerExited(worker, number, "its process ended")
            self.scheduler.after(delay_ns, lambda: coordinator.post(event))

        self.workers = [w for w in self.workers if w.alive]
        # A new process has classes and modules of its own.
        plan = self.program.load(self._parallelisms[coordinator.generation], self.sinks)
        process = WorkerProcess(
            replace(coordinator.env, plan=plan),
            worker,
            number,
            coordinator=coordinator.address,
            address=(f"worker-{coordinator.generation}-{worker}-{number}", 1),
            ended=exited,
        )
        self.workers.append(process)


class _Ear(Observer):
    """Tells a world of failures, and of records that were read."""

    def __init__(self, world: JobWorld) -> None:
        self._world = world

    def ended(self, subtask: SubtaskId, done: WorkDone | Exception) -> None:
        if isinstance(done, WorkDone):
            self._world.polled += done.rows_polled
        elif isinstance(done, UserCodeError) and done.operator in self._world.program.columns:
            # A worker that was given up writes to a transaction that has been aborted.
            return
        elif isinstance(done, HeadraceError):
            self._world.fail(done)
        else:
            raise done

    def attempt_failed(self, reason: str) -> None:
        self._world.restarts += 1


def _fitted(settings: Settings, program: SimulatedProgram, plan: ExecutionPlan) -> Settings:
    """Settings for this plan: no worker without a slot, and the tasks that keep databases."""
    workers = min(settings.workers, plan.slots)
    return replace(settings, workers=workers, databases=program.databases(plan))
