"""Checkpoint duration against the length of one call of a user's function.

Question: does a checkpoint wait for the call that is under way when it is triggered? Topology:
`slow_stage.py`; each call of the slow stage takes so long, however many records it gets: it sleeps,
computes in pure Python, holds the GIL (a C function that does not let go of it), or holds the GIL
of a process of its own (`isolate=True`). Unit: milliseconds from trigger to durable metadata.
A checkpoint that waits for calls lies on the diagonal of the figure.

    headrace bench calls --longest 5 --json > calls.jsonl
    python -m headrace.bench.figure calls.jsonl docs/calls --title "2 virtual cores"

Noise: calls that compute want as many processors as there are workers, and leave none to others on
a machine with as many cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from headrace.engine.contract.options import Runner

from .slow_stage import Arm, Computing, Holding, Sleeping, Stage, observe

Kind = Literal["sleeping", "computing", "holding", "isolated"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LENGTHS_S = (0.001, 0.01, 0.1, 1.0, 5.0, 20.0, 60.0)


def arms(kind: Kind | None, longest_s: float) -> Iterator[tuple[Kind, float]]:
    """(kind, length in seconds) of each arm to run; kind None: every one."""
    for length_s in LENGTHS_S:
        for name in KINDS if kind is None else (kind,):
            if length_s <= longest_s:
                yield name, length_s


def run(
    *,
    kind: Kind = "sleeping",
    call_s: float = 1.0,
    mode: str = "unaligned",
    parallelism: int = 2,
    seconds: float = 15.0,
    runner: Runner = "processes",
) -> dict[str, Any]:
    """Watch one arm for `seconds` or longer, until three checkpoints triggered during calls have
    completed.

    Returns one flat object with the keys of docs/cli.md, `bench calls`.
    """
    arm = Arm(
        mode,
        _stage(kind, call_s),
        parallelism,
        runner=runner,
        isolate=kind == "isolated",
        seconds=seconds,
        patience_s=60.0 + 4 * call_s,
    )
    seen = observe(arm)
    return {
        "bench": "calls",
        "kind": kind,
        "call_s": call_s,
        "mode": mode,
        "parallelism": parallelism,
        "runner": runner,
        "checkpoint_p50_ms": seen.duration_ms(50),
        "checkpoint_p99_ms": seen.duration_ms(99),
        "checkpoint_max_ms": seen.duration_ms(100),
        "underway_ms": seen.underway_ms,
        "floor_ms": seen.floor_ms(50),
        "completed": len(seen.completed),
        "failed": seen.failed,
        "restarts": seen.restarts,
        "durations_ms": seen.durations_ms,
        "floors_ms": seen.floors_ms,
    }


def _stage(kind: Kind, call_s: float) -> Stage:
    match kind:
        case "sleeping":
            return Sleeping(call_s)
        case "computing":
            return Computing(call_s)
        case "holding" | "isolated":
            return Holding(call_s)
