"""Arguments of `headrace bench`, of the engine by itself; the benchmarks stand in `headrace.bench`.

The benchmarks lie above the engine, so each command imports its own, and nothing else here does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from .bench_parameters import (
    BenchRunner,
    Directory,
    Interval,
    Parallelism,
    Records,
    Rounds,
    Seconds,
)
from .parameters import Json

benchmarks = App(name="bench", help="Measure the engine on this machine.")


@benchmarks.command
def count(
    *,
    records: Records = 30_000_000,
    parallelism: Parallelism = 2,
    runner: BenchRunner = "processes",
    keys: Annotated[Literal["numbers", "text"], Parameter(help="int64, or 16 characters.")] = (
        "numbers"
    ),
    skew: Annotated[
        bool, Parameter(negative=(), help="Give three of ten records the same key.")
    ] = False,
    emit: Annotated[
        Literal["final", "changes"],
        Parameter(help="Each key once at the end, or each batch's changed keys."),
    ] = "final",
    logged: Annotated[
        bool, Parameter(negative=(), help="Let the records through a logged edge first.")
    ] = False,
    checkpoint_interval: Interval = "1s",
    checkpoint_dir: Directory = None,
    json: Json = False,
) -> int:
    """Count and sum by key: records per second through a keyed exchange.

    Exit code 3 if the answer is wrong.
    """
    from headrace.bench.count import run

    measure = partial(run, keys=keys, skewed=skew, emit=emit, logged=logged)
    return _throughput(
        measure, records, parallelism, runner, checkpoint_interval, checkpoint_dir, as_json=json
    )


@benchmarks.command
def shuffle(
    *,
    records: Records = 30_000_000,
    parallelism: Parallelism = 2,
    runner: BenchRunner = "processes",
    checkpoint_interval: Interval = "1s",
    checkpoint_dir: Directory = None,
    json: Json = False,
) -> int:
    """Pass records through four shuffles. Exit code 3 if the answer is wrong."""
    from headrace.bench.shuffle import run as measure

    return _throughput(
        measure, records, parallelism, runner, checkpoint_interval, checkpoint_dir, as_json=json
    )


@benchmarks.command
def slow_network(
    *,
    records: Records = 2_000_000,
    bandwidth: Annotated[
        str, Parameter(help="Of each worker, each way, a second: a size such as 20MB.")
    ] = "20MB",
    parallelism: Parallelism = 2,
    checkpoint_interval: Interval = "500ms",
    json: Json = False,
) -> int:
    """Time the barriers of unaligned checkpoints while the network between workers is full
    (Linux). Exit code 3 if a record was lost.
    """
    from headrace.bench.slow_network import run as measure

    from .tables import show_measured

    found = measure(
        records=records,
        network_bytes_per_s=_bandwidth(bandwidth, "--bandwidth"),
        parallelism=parallelism,
        checkpoint_interval=checkpoint_interval,
    )
    show_measured(found, as_json=json)
    return 0 if found["correct"] else 3


def _bandwidth(size: str, option: str) -> int:
    """Bytes a second. Raises: UserError."""
    from ..contract.errors import UserError
    from ..contract.units import size_bytes

    found = size_bytes(size, option=option)
    if not found:
        raise UserError(f"{option}={size!r} lets nothing through; write a size such as 20MB")
    return found


@benchmarks.command
def first(
    *,
    records: Records = 20_000_000,
    slow_calls: Annotated[
        int,
        Parameter(validator=validators.Number(gte=1), help="Of the slow function, 4096 rows each."),
    ] = 300,
    parallelism: Parallelism = 2,
    runner: BenchRunner = "processes",
    json: Json = False,
) -> int:
    """Run a newcomer's first programs (read, one function, write), and a slow function against a
    plain loop: one result for each.
    """
    from headrace.bench.first import run as measure

    from .tables import show_measured

    for found in measure(
        records=records, slow_calls=slow_calls, parallelism=parallelism, runner=runner
    ):
        show_measured(found, as_json=json)
    return 0


@benchmarks.command
def light(
    *,
    rate: Annotated[
        float,
        Parameter(validator=validators.Number(gte=0), help="Records per second; 0: no input."),
    ] = 1000.0,
    seconds: Annotated[
        float, Parameter(validator=validators.Number(gt=0), help="To measure, after a warm-up.")
    ] = 10.0,
    parallelism: Parallelism = 2,
    runner: BenchRunner = "processes",
    checkpoint_interval: Interval = "1s",
    json: Json = False,
) -> int:
    """Light load: latency at a steady rate through one keyed exchange, and its price in processor
    time.
    """
    from headrace.bench.light import run as measure

    from .tables import show_measured

    found = measure(
        rate=rate,
        seconds=seconds,
        parallelism=parallelism,
        runner=runner,
        checkpoint_interval=None if checkpoint_interval == "none" else checkpoint_interval,
    )
    return show_measured(found, as_json=json)


def _throughput(
    measure: Callable[..., dict[str, Any]],
    records: int,
    parallelism: int,
    runner: str,
    interval: str,
    directory: str | None,
    *,
    as_json: bool,
) -> int:
    """Run a benchmark of records per second, and print its result."""
    from .tables import show_measured

    found = measure(
        records=records,
        parallelism=parallelism,
        runner=runner,
        checkpoint_interval=None if interval == "none" else interval,
        checkpoint_dir=directory,
    )
    return show_measured(found, as_json=as_json)


@benchmarks.command
def state(
    *,
    size: Annotated[str, Parameter(help="Of the state, such as 1GiB.")] = "1GiB",
    changed_percent: Annotated[
        float, Parameter(validator=validators.Number(gt=0, lte=100), help="Between checkpoints.")
    ] = 1.0,
    checkpoints: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="To take.")
    ] = 200,
    records: Annotated[
        int, Parameter(validator=validators.Number(gte=0), help="To count by key; 0: do not.")
    ] = 30_000_000,
    keys: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="Different ones among the records.")
    ] = 10_000_000,
    runner: BenchRunner = "processes",
    json: Json = False,
) -> int:
    """Write incremental checkpoints of RocksDB state, and count by key on it.

    Exit code 3 if the count is wrong.
    """
    from headrace.bench.state import run as measure
    from headrace.bench.state_count import run_counts, run_parts

    from ..contract.units import size_bytes
    from .tables import show_measured

    found = measure(
        state_bytes=size_bytes(size, option="--size"),
        changed_percent=changed_percent,
        checkpoints=checkpoints,
    )
    code = show_measured(found, as_json=json)
    if records:
        show_measured(run_parts(), as_json=json)
        code = show_measured(run_counts(records=records, keys=keys, runner=runner), as_json=json)
    return code


@benchmarks.command
def recovery(
    *,
    state: Annotated[str, Parameter(help="Of the state on RocksDB, such as 1GiB.")] = "1GiB",
    inflight: Annotated[str, Parameter(help="In flight, such as 64MiB.")] = "64MiB",
    parallelism: Parallelism = 2,
    rescale_to: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="The parallelism to end at.")
    ] = 4,
    kills: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="Workers, one after the other.")
    ] = 3,
    runner: Annotated[
        Literal["processes", "spark"], Parameter(help="What carries the workers.")
    ] = "processes",
    json: Json = False,
) -> int:
    """Kill workers of a job with large state and full queues, then rescale the job: its standstill,
    against the floor.
    """
    from headrace.bench.recovery import run as measure

    from ..contract.units import size_bytes
    from .tables import show_measured

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    found = measure(
        state_bytes=size_bytes(state, option="--state"),
        inflight_bytes=size_bytes(inflight, option="--inflight"),
        parallelism=parallelism,
        rescale_to=rescale_to,
        kills=kills,
        runner=runner,
        report=report,
    )
    return show_measured(found, as_json=json)


@benchmarks.command
def flip76(
    *,
    sleep_ms: Annotated[
        float | None,
        Parameter(validator=validators.Number(gte=0), help="Of the slow stage, per record."),
    ] = None,
    mode: Annotated[
        Literal["aligned", "unaligned", "continuous", "none"] | None,
        Parameter(help="Of the checkpoints; 'none' takes none."),
    ] = None,
    parallelism: Parallelism = 2,
    seconds: Seconds = 15.0,
    rounds: Rounds = 1,
    runner: BenchRunner = "processes",
    storage: Annotated[
        Literal["local", "slowed"],
        Parameter(help="Of the checkpoints; 'slowed': 100 MB/s and 30 ms a request."),
    ] = "local",
    skew: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Give 30 % of the records one key, and the slow stage its records by key.",
        ),
    ] = False,
    slow_network: Annotated[
        str | None,
        Parameter(help="Each worker, a thread, sends at most so much a second: such as 20MB."),
    ] = None,
    json: Json = False,
) -> int:
    """Checkpoint under backpressure (FLIP-76): one result for each mode and sleep, or only for
    those given.
    """
    from headrace.bench.flip76 import arms, run

    bandwidth = None if slow_network is None else _bandwidth(slow_network, "--slow-network")

    def measure(arm: tuple[str, float]) -> dict[str, Any]:
        return run(
            mode=arm[0],
            sleep_ms=arm[1],
            parallelism=parallelism,
            seconds=seconds,
            runner=runner,
            storage=storage,
            skewed=skew,
            network_bytes_per_s=bandwidth,
        )

    return _interleaved(list(arms(mode, sleep_ms)), measure, rounds, as_json=json)


@benchmarks.command
def calls(
    *,
    kind: Annotated[
        Literal["sleeping", "computing", "holding", "isolated"] | None,
        Parameter(
            help="Of the calls; 'holding' holds the GIL, 'isolated' in a process of its own."
        ),
    ] = None,
    longest: Annotated[
        float, Parameter(validator=validators.Number(gte=0.001), help="Call, in seconds.")
    ] = 60.0,
    mode: Annotated[
        Literal["aligned", "unaligned", "continuous"], Parameter(help="Of the checkpoints.")
    ] = "unaligned",
    parallelism: Parallelism = 2,
    seconds: Seconds = 15.0,
    rounds: Rounds = 1,
    runner: BenchRunner = "processes",
    json: Json = False,
) -> int:
    """Checkpoint while one call of a user's function takes 1 ms to 60 s: one result for each kind
    and length.
    """
    from headrace.bench.calls import arms, run

    def measure(arm: tuple[Any, float]) -> dict[str, Any]:
        return run(
            kind=arm[0],
            call_s=arm[1],
            mode=mode,
            parallelism=parallelism,
            seconds=seconds,
            runner=runner,
        )

    return _interleaved(list(arms(kind, longest)), measure, rounds, as_json=json)


@benchmarks.command
def branches(
    *,
    parallelism: Parallelism = 2,
    rounds: Rounds = 1,
    runner: BenchRunner = "processes",
    json: Json = False,
) -> int:
    """Send to a fast and to a blocked branch: one result without `checkpoints.spill_blocked`, and
    one with it.
    """
    from headrace.bench.branches import run

    def measure(arm: tuple[str, float]) -> dict[str, Any]:
        return run(spill=bool(arm[1]), parallelism=parallelism, runner=runner)

    return _interleaved([("kept", 0.0), ("spilled", 1.0)], measure, rounds, as_json=json)


@benchmarks.command
def region_kills(
    *,
    kills: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="In turn, in three regions.")
    ] = 6,
    read: Annotated[
        Literal["committed", "at_once"], Parameter(help="How the regions read their logs.")
    ] = "committed",
    parallelism: Parallelism = 2,
    json: Json = False,
) -> int:
    """Kill workers of three regions: which share of a whole job's rollback is executed again, and
    for how long the others give nothing. Exit code 3 if a record was lost.
    """
    from headrace.bench.region_kills import run

    from .tables import show_measured

    return show_measured(run(kills=kills, read=read, parallelism=parallelism), as_json=json)


def _interleaved(
    arms: Sequence[tuple[str, float]],
    measure: Callable[[tuple[str, float]], dict[str, Any]],
    rounds: int,
    *,
    as_json: bool,
) -> int:
    """Run all arms so many times, and print the medians of each with the last round."""
    from headrace.bench.flip76 import medians

    from .tables import show_measured

    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for number in range(rounds):
        for arm in arms:
            of_arm = found.setdefault(arm, [])
            of_arm.append(measure(arm))
            if number == rounds - 1:
                show_measured(medians(of_arm), as_json=as_json)
    return 0
