"""Where a campaign runs its job, and what it kills there.

Each ground is a context manager that names how to start the job, the kinds of things that can be
killed, and how to mend what was killed. Kills are SIGKILL; nobody is warned. A frozen executor
(SIGSTOP, its Python workers too) stands for a machine that cannot be reached: nothing closes, only
heartbeats stay away, and it wakes up when its work was given to others.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark import SparkContext

import headrace as hr
from headrace.engine.spark.capacity import require_slots
from headrace.engine.spark.standalone import StandaloneCluster, descendants

Place = Literal["standalone", "local", "processes"]

#: How long a restarted node's executor may take to come up.
_EXECUTORS_S = 60.0

#: Kills one thing of the job.
Kill = Callable[[hr.JobHandle], None]


@dataclass(frozen=True, slots=True)
class Ground:
    """A place where a job runs and things can be killed.

    Attributes:
        runner: arguments of `Job.start`.
        kinds: {what is killed: how}.
        turns: those kinds that a campaign takes in turn if it is not told which.
        mend: brings back what does not come back by itself; called when the job has recovered.
    """

    runner: Mapping[str, Any]
    kinds: Mapping[str, Kill]
    turns: Sequence[str]
    mend: Callable[[], None] = field(default=lambda: None)


def open_ground(place: Place, folder: Path, rng: random.Random) -> AbstractContextManager[Ground]:
    """Prepare a place; logs go to `folder`."""
    if place == "standalone":
        return _standalone(folder, rng)
    return _one_machine("processes" if place == "processes" else "spark", rng)


@contextmanager
def _one_machine(runner: str, rng: random.Random) -> Iterator[Ground]:
    kinds = {"worker": lambda handle: _kill_worker(handle, rng)}
    yield Ground({"runner": runner}, kinds, ["worker"])


@contextmanager
def _standalone(folder: Path, rng: random.Random) -> Iterator[Ground]:
    """Two nodes of two cores each: when one dies there is room for its worker on the other, as on a
    real cluster.
    """
    with StandaloneCluster(folder, nodes=2, cores_per_node=2) as cluster:
        nodes = [0, 1]
        frozen: list[int] = []

        def kill_executor(handle: hr.JobHandle) -> None:
            executors = [pid for node in nodes for pid in cluster.executors(node)]
            _kill(rng.choice(_hosts(handle, executors)))

        def kill_node(handle: hr.JobHandle) -> None:
            busy = [n for n in nodes if _hosts(handle, cluster.executors(n))]
            victim = rng.choice(busy)
            nodes.remove(victim)
            cluster.kill_node(victim)

        def freeze_executor(handle: hr.JobHandle) -> None:
            executors = [pid for node in nodes for pid in cluster.executors(node)]
            victim = rng.choice(_hosts(handle, executors))
            frozen.extend([victim, *descendants(victim)])
            _signal(frozen, signal.SIGSTOP)

        def mend() -> None:
            _signal(frozen, signal.SIGCONT)
            frozen.clear()
            while len(nodes) < 2:
                nodes.append(cluster.add_node())
            # A cluster at half strength is another campaign: wait for the executors too.
            context = SparkContext._active_spark_context
            assert context is not None, "the job runs"
            require_slots(context, 2 * len(nodes), timeout_s=_EXECUTORS_S)

        yield Ground(
            {"runner": "spark", "master": cluster.master_url},
            {
                "python worker": lambda handle: _kill_worker(handle, rng),
                "executor": kill_executor,
                "node": kill_node,
                "frozen executor": freeze_executor,
            },
            ["python worker", "executor", "node"],
            mend,
        )


def _hosts(handle: hr.JobHandle, executors: list[int]) -> list[int]:
    """Those of the executors that carry a worker of the job; the others would be killed in vain."""
    workers = set(handle.status().workers.values())
    return [pid for pid in executors if workers & set(descendants(pid))]


def _kill_worker(handle: hr.JobHandle, rng: random.Random) -> None:
    _kill(rng.choice(sorted(handle.status().workers.values())))


def _kill(pid: int) -> None:
    _signal([pid], signal.SIGKILL)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
