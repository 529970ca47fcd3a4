"""`simulate`: a user's job under drawn faults, seed after seed, against a run without faults.

The faults are those that a user's function can tell: its process dies and another goes on from a
checkpoint, the job is rescaled, connections break, and everything takes another time in another
order. Faults of storage and of clocks are the engine's own affair, and its campaigns draw them.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.channels.events import CheckpointMode

from ..contract.errors import HeadraceError, UserError
from ..contract.user_code import Row
from ..session.job import Job
from ..simulation.campaign.faults import (
    COORDINATOR_POINTS,
    WORKER_POINTS,
    FaultProfile,
    draw_point,
    no_faults,
)
from ..simulation.scheduler import MILLISECOND_NS, SECOND_NS
from .job_world import JobWorld
from .simulated_program import Records, SimulatedProgram
from .simulated_settings import draw_settings, mode_of

#: {sink: its records, in the order of commits}
Output = Mapping[str, Sequence[Row]]
Check = Callable[[Output], Any]
#: Does something to a world; what it returns does not matter.
Fault = Callable[[JobWorld], object]
#: A run's sources are asked about so often, however many records they have.
_POLLS = 24
_PARALLELISM_MAX = 4
#: Of runs without faults, where a run with faults has differed.
_CALM_SEEDS = (1001, 1002, 1003)
#: Runs without a restored checkpoint are suspicious from this number on.
_SUSPICIOUS = 100


class SimulationFailed(AssertionError):
    """A job's output is not what it is without faults; the message says how to repeat the run.

    Attributes:
        seed: of the run.
    """

    def __init__(self, seed: int, message: str) -> None:
        super().__init__(seed, message)
        self.seed = seed

    def __str__(self) -> str:
        return str(self.args[1])


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What the runs met.

    Attributes:
        seeds: number of runs.
        restores: runs that went on from a checkpoint after a failure or a rescale.
        rescales: rescales.
        restarts: failed attempts.
        seconds: in real time.
    """

    seeds: int
    restores: int
    rescales: int
    restarts: int
    seconds: float


def simulate(
    job: Job | Callable[[], Job],
    *,
    seeds: int | Iterable[int] = 1000,
    sources: Mapping[str, Records] | None = None,
    parallelism: int | None = None,
    ordered: Mapping[str, str | Sequence[str]] | None = None,
    check: Check | None = None,
) -> SimulationReport:
    """Run a job once without faults, then under the faults of each seed, and compare the output.

    Each sink must show the same records as without faults, each as often; a job that states
    `at_least_once` must show each at least as often.

    Args:
        job: the job, or a function that makes it. Its sources must end.
        seeds: how many, from 0; or the seeds themselves, as in `[417]`.
        sources: {source: records in place of its own}, as of `Simulated`.
        parallelism: of operators that state none, at first; None: the job's, else 2.
        ordered: {sink: key columns}: records with equal keys must come in the same order, too.
        check: called with the output of each run in place of the comparison, for a job whose
            output depends on the order in which records meet. It raises AssertionError, or returns
            False.

    Raises: SimulationFailed at the first seed that breaks the job; UserError; UserCodeError or
        JobFailed as a job.
    """
    begun = time.monotonic()
    program = SimulatedProgram(
        job if isinstance(job, Job) else job(), sources=sources, parallelism=parallelism
    )
    judge = _Judge(program, dict(ordered or {}), check)
    count = restores = rescales = restarts = 0
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        world = judge.judged(seed)
        count += 1
        restores += world.coverage.counts["restored from a checkpoint"] > 0
        rescales += sum(what.startswith("rescaled") for what in world.told)
        restarts += world.restarts
    if count >= _SUSPICIOUS and not restores:
        raise UserError(
            f"simulate: none of {count} runs was restored from a checkpoint, so nothing was tested;"
            " give the sources more records"
        )
    return SimulationReport(count, restores, rescales, restarts, time.monotonic() - begun)


@dataclass(slots=True)
class _Plan:
    """What happens in a run: (records read before, action)."""

    faults: list[tuple[int, Fault]]
    profile: FaultProfile


class _Judge:
    """Runs seeds, and compares."""

    def __init__(
        self, program: SimulatedProgram, ordered: dict[str, Any], check: Check | None
    ) -> None:
        self._program, self._ordered, self._check = program, ordered, check
        self._mode = mode_of(program.job)
        for sink in ordered:
            if sink not in program.columns:
                raise UserError(f"ordered: the job has no sink {sink!r}")
        highest = min(_PARALLELISM_MAX, program.job.max_parallelism)
        self._parallelisms = [p for p in range(1, highest + 1) if program.rescales_to(p)]
        self._rows = 4
        self._duration_ns = SECOND_NS
        calm = self._run(0, _Plan([], no_faults()))
        self._expected = self._output(calm)
        self._rows = max(1, calm.polled)
        self._duration_ns = calm.scheduler.now_ns
        self._complain_of(0, calm, self._misfit(self._expected), calm=True)

    def judged(self, seed: int) -> JobWorld:
        """Run a seed. Raises: SimulationFailed."""
        world = self._run(seed, self._draw(random.Random(f"faults {seed}")))
        problem = self._misfit(self._output(world))
        if problem:
            self._complain_of(seed, world, problem, calm=self._differs_calmly(seed))
        return world

    def _differs_calmly(self, seed: int) -> bool:
        """Faults are not to blame: other schedules without faults change the output, too."""
        seeds = (seed, *_CALM_SEEDS)
        runs = (self._run(each, _Plan([], no_faults())) for each in seeds)
        return any(self._misfit(self._output(run)) for run in runs)

    def _run(self, seed: int, plan: _Plan) -> JobWorld:
        rng = random.Random(f"settings {seed}")
        mode = self._mode
        if mode is not CheckpointMode.AT_LEAST_ONCE:
            mode = rng.choice((CheckpointMode.ALIGNED, CheckpointMode.UNALIGNED))
        settings = draw_settings(
            rng,
            mode,
            workers=rng.randint(1, 3),
            interval_ns=max(MILLISECOND_NS, int(self._duration_ns * rng.uniform(0.05, 0.3))),
            work_rows=max(2, self._rows // _POLLS),
        )
        world = JobWorld(seed, self._program, settings, plan.profile)
        due = sorted(plan.faults, key=lambda fault: fault[0], reverse=True)
        try:
            while not world.finished:
                world.step()
                while due and world.polled >= due[-1][0]:
                    _, happen = due.pop()
                    delay_ns = rng.randint(0, 5) * MILLISECOND_NS
                    world.scheduler.after(delay_ns, partial(_happen, happen, world))
        except HeadraceError as error:
            error.add_note(f"seed {seed}; faults: {_faults_of(world)}")
            error.add_note(_repeated(seed))
            raise
        finally:
            world.close()
        return world

    def _draw(self, rng: random.Random) -> _Plan:
        """Draw the faults of a run: some kinds often in it, not all kinds seldom."""
        faults: list[tuple[int, Fault]] = []

        def at_random(count: int, make: Callable[[], Fault]) -> None:
            faults.extend((int(self._rows * rng.uniform(0, 1.2)), make()) for _ in range(count))

        def rescale() -> Fault:
            parallelism = rng.choice(self._parallelisms)
            return lambda world: world.rescale(parallelism)

        at_random(rng.choice((0, 1, 1, 2)), lambda: JobWorld.crash_worker)
        at_random(rng.random() < 0.25, lambda: JobWorld.crash_driver)
        at_random(rng.random() < 0.25, lambda: JobWorld.sever)
        at_random(rng.choice((0, 0, 1, 2)) if self._parallelisms else 0, rescale)
        points = COORDINATOR_POINTS + WORKER_POINTS
        profile = FaultProfile(
            until_ns=3 * self._duration_ns,
            crash_points=(draw_point(rng, points),) if rng.random() < 0.3 else (),
            network_delay_ns=rng.choice((1, 1, 5)) * MILLISECOND_NS,
            storage_delay_ns=rng.choice((1, 2, 8)) * MILLISECOND_NS,
        )
        return _Plan(faults, profile)

    # --- the comparison ---------------------------------------------------------------------------

    def _output(self, world: JobWorld) -> dict[str, list[Row]]:
        return {sink: world.output(sink) for sink in self._program.columns}

    def _misfit(self, output: dict[str, list[Row]]) -> str:
        """How the output differs from what is due; empty: it does not."""
        if self._check is not None:
            try:
                fits = self._check(output) is not False
            except AssertionError as error:
                return f"check: {error}" if str(error) else "check raised AssertionError"
            return "" if fits else "check returned False"
        for sink, rows in output.items():
            wanted = self._expected[sink]
            problem = self._of_sink(sink, wanted, rows)
            if problem:
                return f"sink {sink!r} {problem}"
        return ""

    def _of_sink(self, sink: str, wanted: list[Row], found: list[Row]) -> str:
        due, there = Counter(map(repr, wanted)), Counter(map(repr, found))
        missing, added = list((due - there).elements()), list((there - due).elements())
        if self._mode is CheckpointMode.AT_LEAST_ONCE:
            added = []
        if missing or added:
            parts = [f"lacks {len(missing)} records, as {missing[0]}"] * bool(missing)
            parts += [f"has {len(added)} too many, as {added[0]}"] * bool(added)
            return " and ".join(parts)
        if sink in self._ordered:
            keys = self._ordered[sink]
            columns = [keys] if isinstance(keys, str) else list(keys)
            before, now = _by_key(wanted, columns), _by_key(found, columns)
            for key, rows in before.items():
                if now[key] != rows:
                    named = ", ".join(f"{c}={v}" for c, v in zip(columns, key, strict=True))
                    return f"shows the records of {named} in another order"
        return ""

    def _complain_of(self, seed: int, world: JobWorld, problem: str, *, calm: bool) -> None:
        if not problem:
            return
        also = (
            " The run differs without faults as well: the output depends on the order in which"
            " records meet, or on the clock or on chance; then compare with check=."
            if calm
            else ""
        )
        raise SimulationFailed(
            seed,
            f"seed {seed}: {problem}.{also}\nfaults: {_faults_of(world)}\n{_repeated(seed)}",
        )


def _faults_of(world: JobWorld) -> str:
    crashes = [name for name in world.coverage.counts if name.startswith("crash ")]
    return ", ".join([*world.told, *crashes]) or "none"


def _repeated(seed: int) -> str:
    return f"repeat: hr.testing.simulate(job, seeds=[{seed}])"


def _happen(fault: Fault, world: JobWorld) -> None:
    fault(world)


def _by_key(rows: list[Row], columns: list[str]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in rows:
        found[tuple(repr(row[column]) for column in columns)].append(repr(row))
    return found
