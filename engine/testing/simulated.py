"""`Simulated`: a user's whole job in virtual time, step by step, with the faults that a test wants.

One seed is one run, bit for bit, as long as the user's code is repeatable. Time passes as fast as
the job computes; a timeout of an hour costs nothing. Calls of `map_async` alone take real time, and
come back in an order of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from ..contract.errors import UserError
from ..contract.units import Duration, duration_ns
from ..contract.user_code import Row
from ..session.job import Job
from ..simulation.campaign.faults import no_faults
from .job_world import JobWorld
from .simulated_program import Records, SimulatedProgram
from .simulated_settings import draw_settings, mode_of

#: A checkpoint or a rescale that fails is asked for again so often.
_TRIES = 20


class Simulated:
    """A job in virtual time; a context manager.

    Sinks write into memory, and `output` shows what is committed. Workers are processes: what a
    checkpoint does not hold dies with them.

    Example:
        with hr.testing.Simulated(job, seed=7) as run:
            run.until(lambda: run.read >= 10)
            run.checkpoint()
            run.crash(worker=1)
            run.rescale(3)
            run.until()
            assert run.output("out") == [...]
    """

    def __init__(
        self,
        job: Job,
        *,
        seed: int = 0,
        sources: Mapping[str, Records] | None = None,
        parallelism: int | None = None,
        workers: int = 2,
        show: Callable[[str], None] | None = None,
    ) -> None:
        """Take a job; `with` starts it.

        Args:
            seed: decides how records are cut, queued and interleaved, and how long all takes.
            sources: {source: records in place of its own}: dictionaries, or an Arrow table, each
                of whose chunks stays in order.
            parallelism: of operators that state none; None: the job's, else 2.
            workers: number of worker processes, at most one for each slot.
            show: gets a line for each event.

        Raises: UserError when a part of the job cannot run in virtual time.
        """
        self._program = SimulatedProgram(job, sources=sources, parallelism=parallelism)
        rng = random.Random(f"settings {seed}")
        self._settings = draw_settings(rng, mode_of(job), workers=workers)
        self._seed, self._show = seed, show
        self._world: JobWorld | None = None
        self._requests = 0

    def __enter__(self) -> Self:
        self._world = JobWorld(
            self._seed, self._program, self._settings, no_faults(), show=self._show
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered().close()

    # --- time -------------------------------------------------------------------------------------

    def until(self, what: Duration | Callable[[], bool] | None = None) -> None:
        """Go on until something has happened.

        Args:
            what: a function that says so, asked after every event; or a duration in virtual time,
                as "5s"; None: until the job has finished.

        Raises: UserError when the job finishes before; UserCodeError or JobFailed as a job.
        """
        world = self._entered()
        if what is None:
            while not world.finished:
                world.step()
        elif callable(what):
            self._go_on(what, "until: what it waits for came true")
        else:
            end_ns = world.scheduler.now_ns + duration_ns(what, option="until")
            while not world.finished and world.scheduler.now_ns < end_ns:
                world.step()

    @property
    def seconds(self) -> float:
        """Virtual time since the start."""
        return self._entered().scheduler.now_ns / 1e9

    # --- faults -----------------------------------------------------------------------------------

    def crash(self, worker: int | None = None) -> None:
        """Kill a worker, counted from 0; None: any one that lives. The job restarts by itself.

        Raises: UserError when the job has finished, or never has such a worker.
        """
        world = self._entered()
        count = world.env.settings.workers
        if worker is not None and not 0 <= worker < count:
            raise UserError(f"crash: there are {count} workers, from 0; there is no {worker}")
        self._go_on(lambda: world.is_running and world.crash_worker(worker), "the crash")

    def crash_driver(self) -> None:
        """Kill the driver, and with it all workers; the program is started again.

        Raises: UserError when the job has finished.
        """
        world = self._entered()
        self._go_on(lambda: world.is_running and world.crash_driver(), "the crash")

    def checkpoint(self) -> int:
        """Take a checkpoint, and go on until it is complete and committed. Returns its number.

        Raises: UserError when the job finishes before.
        """
        world = self._entered()
        for _ in range(_TRIES):
            self._go_on(lambda: world.is_running, "the checkpoint")
            self._requests += 1
            request, restarts = self._requests, world.restarts
            world.request(request)

            def answered(request: int = request, restarts: int = restarts) -> bool:
                return request in world.saved or world.restarts > restarts

            self._go_on(answered, "the checkpoint")
            if request in world.saved:
                while not (world.is_committed or world.finished):
                    world.step()
                return world.saved[request]
        raise UserError(f"checkpoint: {_TRIES} attempts failed one after the other")

    def rescale(self, parallelism: int) -> None:
        """Take the job to another parallelism, of operators that state none.

        Raises: UserError when the job finishes before, or cannot have this parallelism.
        """
        world = self._entered()
        self._program.job.plan(parallelism)
        for _ in range(_TRIES):
            self._go_on(lambda: world.is_running, "the rescale")
            world.rescale(parallelism)
            self._go_on(lambda: world.is_running, "the rescale")
            if world.parallelism == parallelism:
                return
        raise UserError(f"rescale: {_TRIES} attempts failed one after the other")

    # --- what there is ----------------------------------------------------------------------------

    def output(self, sink: str) -> list[Row]:
        """Return the committed records of a sink, in the order of their commits.

        A record is committed when a checkpoint behind it is complete; the last one is taken as the
        job finishes. Raises: UserError when there is no such sink.
        """
        rows: list[dict[str, Any]] = self._entered().output(sink)
        return rows

    @property
    def read(self) -> int:
        """Records that sources have handed out; records that are read again count again."""
        return self._entered().polled

    @property
    def restarts(self) -> int:
        """Attempts that have failed."""
        return self._entered().restarts

    @property
    def parallelism(self) -> int:
        """Of operators that state none, now."""
        return self._entered().parallelism

    @property
    def finished(self) -> bool:
        """The job has come to its end."""
        return self._entered().finished

    # --- inside -----------------------------------------------------------------------------------

    def _go_on(self, is_over: Callable[[], bool], what: str) -> None:
        world = self._entered()
        while not is_over():
            if world.finished:
                raise UserError(f"the job finished before {what}; begin it earlier in the input")
            world.step()

    def _entered(self) -> JobWorld:
        if self._world is None:
            raise UserError("Simulated is a context manager: with hr.testing.Simulated(job) as run")
        return self._world
