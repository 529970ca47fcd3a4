"""Arguments of `headrace bench`; the benchmarks stand in `headrace.bench`.

The benchmarks lie above the engine, so each command imports its own, and nothing else here does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, validators

from .parameters import Json

Records = Annotated[int, Parameter(validator=validators.Number(gte=1), help="How many records.")]
Parallelism = Annotated[
    int,
    Parameter(
        name=["--parallelism", "-p"],
        validator=validators.Number(gte=1),
        help="Subtasks per operator.",
    ),
]
BenchRunner = Annotated[
    Literal["processes", "threads", "spark"], Parameter(help="What carries the workers.")
]
Seconds = Annotated[
    float, Parameter(validator=validators.Number(gt=0), help="To watch each arm, at least.")
]
Rounds = Annotated[
    int,
    Parameter(
        validator=validators.Number(gte=1),
        help="Run all arms so many times, interleaved; the results are medians.",
    ),
]
Interval = Annotated[
    str, Parameter(name="--checkpoint-interval", help="Such as 1s; 'none' takes no checkpoints.")
]
Directory = Annotated[
    str | None,
    Parameter(name="--checkpoint-dir", help="Where checkpoints go; a temporary folder otherwise."),
]

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


@benchmarks.command
def sink(
    *,
    pipeline: Annotated[
        Literal["read", "count", "map"] | None, Parameter(help="In front of the sink.")
    ] = None,
    records: Records = 40_000_000,
    parallelism: Parallelism = 2,
    rounds: Rounds = 3,
    runner: BenchRunner = "processes",
    checkpoint_interval: Annotated[
        str, Parameter(name="--checkpoint-interval", help="Such as 1s.")
    ] = "1s",
    json: Json = False,
) -> int:
    """Write Parquet files, and drop the same records: wall and processor time of the sink as ratios
    to the dropping one, for each pipeline. Exit code 3 if a record was lost.
    """
    from headrace.bench.sink import PIPELINES, run

    from .tables import show_measured

    codes = [
        show_measured(
            run(
                pipeline=each,
                records=records,
                rounds=rounds,
                parallelism=parallelism,
                runner=runner,
                checkpoint_interval=checkpoint_interval,
            ),
            as_json=json,
        )
        for each in ([pipeline] if pipeline else PIPELINES)
    ]
    return max(codes)


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


@benchmarks.command
def kafka(
    *,
    servers: Annotated[str, Parameter(help="HOST:PORT of a broker.")] = "localhost:9092",
    records: Records = 2_000_000,
    value_bytes: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="Of each value.")
    ] = 100,
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], Parameter(help="Of the batches.")
    ] = "none",
    patience: Annotated[
        float, Parameter(validator=validators.Number(gt=0), help="With a broker, in seconds.")
    ] = 30.0,
    rate: Annotated[
        float,
        Parameter(
            validator=validators.Number(gt=0),
            help="Records per second while pre-commits are timed.",
        ),
    ] = 20_000.0,
    seconds: Annotated[
        float, Parameter(validator=validators.Number(gt=0), help="How long pre-commits are timed.")
    ] = 20.0,
    json: Json = False,
) -> int:
    """Write records to a topic of Kafka's and read them back: records per second of this process's
    processor time, by the codec and by the whole sink; and how long pre-commits and checkpoints
    take at one a second.

    Exit code 3 if a record is missing.
    """
    from ..contract.extras import extra

    with extra("kafka", "bench kafka"):
        from headrace.bench.kafka import run

    from .tables import show_measured

    found = run(
        servers=servers,
        records=records,
        value_bytes=value_bytes,
        compression=compression,
        patience_s=patience,
        rate=rate,
        seconds=seconds,
    )
    return show_measured(found, as_json=json)


@benchmarks.command
def dataframe(
    *,
    rows: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="A bigint and a double each.")
    ] = 10_000_000,
    parallelism: Parallelism = 2,
    rounds: Annotated[
        int,
        Parameter(
            validator=validators.Number(gte=1),
            help="In one session; the first one waits for Java to compile.",
        ),
    ] = 3,
    json: Json = False,
) -> int:
    """Take a DataFrame through a job in Spark's workers and read the output as a DataFrame: rows
    per second, one result for each round.

    Exit code 3 if a row is lost, doubled or changed.
    """
    from ..contract.extras import extra

    with extra("spark", "bench dataframe"):
        from headrace.bench.dataframe import run

    from .tables import show_measured

    results = run(rows=rows, parallelism=parallelism, rounds=rounds)
    return max(show_measured(found, as_json=json) for found in results)


@benchmarks.command
def peers(
    *,
    only: Annotated[
        list[Literal["headrace", "flink", "spark", "bytewax", "pathway"]] | None,
        Parameter(help="These engines; all otherwise.", consume_multiple=True),
    ] = None,
    records: Records = 30_000_000,
    rounds: Annotated[
        int,
        Parameter(
            validator=validators.Number(gte=1),
            help="Run all engines so many times, interleaved; the results are medians.",
        ),
    ] = 3,
    json: Json = False,
) -> int:
    """Count by key in other engines and in this one: one result for each, without checkpoints and
    with one each second.

    What they need is installed on first use. Exit code 3 if an answer is wrong or an engine did
    not run.
    """
    from headrace.bench.peers.suite import NAMES, run

    from .tables import show_measured

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    codes, ran = [], set()
    for found in run(only=only or (), records=records, rounds=rounds, report=report):
        codes.append(show_measured(found, as_json=json))
        ran.add(found["peer"])
    return max(codes, default=0) if ran == set(only or NAMES) else 3


@benchmarks.command
def nexmark(
    *,
    queries: Annotated[
        str, Parameter(help="Numbers between commas; all that there are otherwise.")
    ] = "0,1,2,3,4,5,7,8",
    events: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="How many, of all kinds.")
    ] = 2_000_000,
    parallelism: Parallelism = 2,
    runner: BenchRunner = "processes",
    checkpoint_interval: Interval = "1s",
    peers: Annotated[
        str, Parameter(help="Other engines to run beside: flink, bytewax, or both with a comma.")
    ] = "",
    rounds: Rounds = 1,
    json: Json = False,
) -> int:
    """Nexmark: eight queries over persons, auctions and bids, with checked answers; one result for
    each query and engine.

    Exit code 3 if an answer is wrong or a query did not run in an engine.
    """
    from headrace.bench.nexmark.queries import QUERIES
    from headrace.bench.nexmark.suite import PEERS, run

    from ..contract.errors import UserError
    from .tables import show_measured

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    asked = [int(n) for n in _named(queries, [str(n) for n in QUERIES], option="--queries")]
    if not asked:
        raise UserError("--queries names none; leave it out to run all")
    others = _named(peers, [peer.name for peer in PEERS], option="--peers")
    codes = [
        show_measured(found, as_json=json)
        for found in run(
            queries=asked,
            events=events,
            parallelism=parallelism,
            runner=runner,
            checkpoint_interval=None if checkpoint_interval == "none" else checkpoint_interval,
            rounds=rounds,
            peers=others,
            report=report,
        )
    ]
    return max(codes) if len(codes) == len(asked) * (1 + len(others)) else 3


def _named(words: str, known: Sequence[str], *, option: str) -> list[str]:
    """The words between commas, each once. Raises: UserError for an unknown word."""
    from ..contract.errors import UserError
    from ..contract.suggestion import did_you_mean

    named = list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for word in named:
        if word not in known:
            raise UserError(f"{option}: {word!r} is unknown; {did_you_mean(word, known)}")
    return named
