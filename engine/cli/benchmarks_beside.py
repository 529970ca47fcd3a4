"""Arguments of `headrace bench`, with something beside the engine: files, Kafka, Spark, the page,
other engines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from .bench_parameters import (
    BenchRunner,
    Interval,
    Parallelism,
    Records,
    Rounds,
)
from .benchmarks import benchmarks
from .parameters import Json

#: The group, with the commands of both files.
__all__ = ["benchmarks"]


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
def page(
    *,
    turns: Annotated[
        int, Parameter(validator=validators.Number(gte=4, modulo=4), help="A multiple of 4.")
    ] = 40,
    seconds: Annotated[
        float, Parameter(validator=validators.Number(gt=0), help="Of a turn.")
    ] = 3.0,
    clients: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="Of the page, all the time.")
    ] = 2,
    json: Json = False,
) -> int:
    """What a job pays for its page, in percent of its processor time: turns with clients connected
    and without, within one run.
    """
    from ..contract.extras import extra

    with extra("ui", "bench page"):
        from headrace.bench.page import run

    from .tables import show_measured

    return show_measured(run(turns, seconds, clients), as_json=json)


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
