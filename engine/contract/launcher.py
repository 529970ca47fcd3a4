"""The seam between a job's driver and whatever runs its workers: threads, processes, Spark tasks.

The driver makes one `WorkerProgram`, hands it to a `WorkerLauncher`, and listens; the workers
connect to the coordinator by themselves. So a launcher knows how to start and end workers and
nothing else: it does not see the plan, the protocol or the checkpoints.

A worker that is believed dead may still run: a frozen process wakes up, a cancelled Spark task
lives on for seconds. Each start of a worker therefore carries a number, `Incarnation.number`, and
whoever meets two of them obeys the higher. A launcher promises rising numbers, not the end of the
older incarnation.

Not here: the worker itself (`drivers/worker_process.py`), and the `Entry` that runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .options import Checkpoints, Network, RunOptions, State


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """What every worker of a job gets, the same for all of them.

    It holds the job's secret, so it travels only where the launcher's own code travels: through a
    pipe, or inside a Spark task. Never in arguments, environment or logs.

    Attributes:
        job: name of the job.
        coordinator: host and port of the coordinator's server, as the workers reach it.
        secret: the job's key, with which workers and coordinator prove who they are.
        plan: cloudpickle of the execution plan and its factories, made by the driver.
        slots: number of slots of the job, spread over the workers by `slots_of_worker`.
        checkpoints: None: no checkpoint leaves the worker's memory.
        owner: see `OperatorContext`.
    """

    job: str
    coordinator: tuple[str, int]
    secret: bytes = field(repr=False)
    plan: bytes = field(repr=False)
    slots: int
    checkpoints: Checkpoints | None = None
    network: Network = field(default_factory=Network)
    state: State = field(default_factory=State)
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """Which start of which worker this is.

    Attributes:
        worker: 0 <= worker < the launcher's `workers`.
        number: rises with every start of this worker and fences the lower ones. Only the order
            means something: the first start need not be 0, and numbers may be left out.
    """

    worker: int
    number: int


#: Runs a worker until the coordinator ends it; the last argument is the address of this worker's
#: machine, on which it may listen for its peers. An exception means that the worker died.
Entry = Callable[[WorkerProgram, Incarnation, str], None]

#: Told that a worker ended: which start of it, and an exit code (0: it returned; negative: killed
#: by that signal). Called from a thread of the launcher; must not block.
OnExit = Callable[[Incarnation, int], None]


class WorkerLauncher(Protocol):
    """Starts the workers of one job and sees that none survives it. Serves one `start`."""

    @property
    def workers(self) -> int:
        """Number of workers; known before `start`."""
        ...

    @property
    def coordinator_host(self) -> str:
        """Address of this machine on which the coordinator listens, so that all workers reach
        it.
        """
        ...

    def start(
        self,
        program: WorkerProgram,
        on_failure: Callable[[str], None],
        on_exit: OnExit | None = None,
    ) -> None:
        """Start all workers; returns without waiting for them to connect.

        Args:
            program: runs in each worker.
            on_failure: called from another thread, at most once, with one sentence, when workers
                can no longer be provided and the job must fail. Not called after `stop`.
            on_exit: told of workers that end, where the platform does not start them again itself.

        Raises:
            UserError: the machine or cluster cannot hold the workers.
        """
        ...

    def replace(self, worker: int, number: int, lost: int = -1) -> None:
        """Start `worker` again as incarnation `number`, since the driver has lost it; after `stop`
        do nothing.

        Where the platform counts incarnations itself and starts ended workers again (Spark), see
        that this one has ended.

        Args:
            lost: number of the newest incarnation that has registered; -1: none has.
        """
        ...

    def successor(self, slots: int) -> WorkerLauncher | None:
        """Make the launcher of the job that takes this one's place, with so many slots.

        None: only when this launcher has stopped can another be made, from nothing.

        Raises:
            UserError: the slots cannot be had, even without this launcher's own workers.
        """
        ...

    def has_room_beside(self, workers: int) -> bool:
        """So many workers of a successor can run beside this launcher's own."""
        ...

    def stop(self, timeout_s: float) -> None:
        """See that no worker survives; the coordinator has told them to stop already.

        Waits for them up to `timeout_s`, then ends them by force. May be called again.
        """
        ...


def slots_of_worker(worker: int, *, workers: int, slots: int) -> range:
    """Return the slots that `worker` hosts: consecutive ones, spread as evenly as possible."""
    assert 0 <= worker < workers, f"worker {worker} of {workers}"
    return range(worker * slots // workers, (worker + 1) * slots // workers)


#: Makes the launcher that options name, for a job of so many slots. Raises: UserError.
LauncherMaker = Callable[[str, RunOptions, int], WorkerLauncher]
