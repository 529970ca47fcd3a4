"""The `headrace` command: what is typed, and how it ends.

Exit codes: 0 done, 1 the job failed, 2 the user's mistake, 3 a check found a problem, 4 storage unreachable, and
128 + the signal for what a signal ended. A mistake is one sentence on standard error, never a traceback of ours.

Commands import what they need when they run: `headrace --help` waits neither for Arrow nor for Spark.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, validators

from ..api.errors import HeadraceError

_INTERRUPTED = 130
_BROKEN_PIPE = 141

Json = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object per line.")
]
Records = Annotated[int, Parameter(help="How many records.")]
Parallelism = Annotated[int, Parameter(name=["--parallelism", "-p"], help="Subtasks per operator.")]
BenchRunner = Annotated[
    Literal["processes", "threads", "spark"], Parameter(help="What carries the workers.")
]
Interval = Annotated[
    str, Parameter(name="--checkpoint-interval", help="Such as 1s; 'none' takes no checkpoints.")
]
Directory = Annotated[
    str | None,
    Parameter(name="--checkpoint-dir", help="Where checkpoints go; a temporary folder otherwise."),
]

Pid = Annotated[
    int | None, Parameter(help="The process that runs it, where several run a job of that name.")
]
Address = Annotated[
    str | None,
    Parameter(help="The folder where running jobs tell of themselves, if not the usual."),
]

app = App(
    name="headrace",
    help="Stream processing whose checkpoints do not wait for backpressure.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
_checkpoints = App(name="checkpoints", help="Look at the checkpoints in a directory.")
_bench = App(name="bench", help="Measure the engine on this machine.")
app.command(_checkpoints)
app.command(_bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # An interrupted call into Spark is logged with its stack, which says nothing to whoever pressed Ctrl-C.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Its warnings are notices of the job, which the reporter tells.
    logging.getLogger("headrace.engine.coordination.driver").setLevel(logging.ERROR)
    try:
        code = app(words, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _ended(str(error).strip(), 2, words)
    except HeadraceError as error:
        return _ended(str(error), error.exit_code, words)
    except KeyboardInterrupt:
        return _ended("interrupted", _INTERRUPTED, words)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code if isinstance(code, int) else 0


@app.command
def run(
    target: Annotated[str, Parameter(help="FILE[:JOB] or MODULE[:JOB], such as job.py:orders.")],
    /,
    *,
    runner: Annotated[str | None, Parameter(help="spark, processes or threads.")] = None,
    master: Annotated[str | None, Parameter(help="Spark master URL; embedded otherwise.")] = None,
    parallelism: Annotated[
        int | None,
        Parameter(name=["--parallelism", "-p"], help="Subtasks of operators that set none."),
    ] = None,
    checkpoint_dir: Annotated[str | None, Parameter(help="A path or any fsspec URL.")] = None,
    checkpoint_interval: Annotated[str | None, Parameter(help="Such as 1s or 500ms.")] = None,
    mode: Annotated[str | None, Parameter(help="aligned, unaligned or at_least_once.")] = None,
    restore: Annotated[
        str | None, Parameter(help="latest, a checkpoint's number, or the path of one.")
    ] = None,
    allow_unclaimed_state: Annotated[
        bool, Parameter(negative="", help="Restore even if operators of the checkpoint are gone.")
    ] = False,
    map_: Annotated[
        list[str] | None,
        Parameter(
            name="--map", negative="", help="old=new: an operator has another name now; repeatable."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Any other option, as key=value; repeatable."),
    ] = None,
    json: Json = False,
) -> int:
    """Run a job to its end.

    What is given here wins over HEADRACE_* variables, headrace.toml and the code. The first Ctrl-C takes a final
    checkpoint and stops, a second one stops at once.
    """
    from .run import parsed
    from .run import run as run_job

    given = {
        "runner": runner,
        "master": master,
        "parallelism": None if parallelism is None else str(parallelism),
        "checkpoints.directory": checkpoint_dir,
        "checkpoints.interval": checkpoint_interval,
        "checkpoints.mode": mode,
        "restore": restore,
        "allow_unclaimed_state": "true" if allow_unclaimed_state else None,
        "renamed": ",".join(map_) if map_ else None,
    }
    stated = {key: text for key, text in given.items() if text is not None}
    return run_job(target, stated | parsed(set_ or []), as_json=json)


@app.command
def demo(*, json: Json = False) -> int:
    """Count words, kill a worker on the way, and compare the result with a plain count.

    Exit code 3 if the two differ.
    """
    from .demo import run_demo

    return run_demo(as_json=json)


@app.command
def rescale(
    job: Annotated[str, Parameter(help="The name of a job that runs here.")],
    parallelism: Annotated[int, Parameter(help="Of operators that set none.")],
    /,
    *,
    pid: Pid = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Have a running job go on at another parallelism, from an unaligned checkpoint."""
    from .control import rescale as ask

    return ask(job, parallelism, pid=pid, address=address, as_json=json)


@app.command
def savepoint(
    job: Annotated[str, Parameter(help="The name of a job that runs here.")],
    path: Annotated[
        str | None,
        Parameter(help="The directory it goes to; the job's checkpoint directory otherwise."),
    ] = None,
    /,
    *,
    mode: Annotated[
        str | None, Parameter(help="aligned or unaligned; as the job's checkpoints otherwise.")
    ] = None,
    pid: Pid = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Have a running job take a savepoint, which is yours and never deleted; print its path."""
    from .control import savepoint as ask

    return ask(job, path, mode=mode, pid=pid, address=address, as_json=json)


@app.command
def stop(
    job: Annotated[str, Parameter(help="The name of a job that runs here.")],
    /,
    *,
    now: Annotated[
        bool, Parameter(negative="", help="At once; what no checkpoint covers is not committed.")
    ] = False,
    drain: Annotated[
        bool,
        Parameter(
            negative="",
            help="End the input first: windows and timers fire. For a job that is over.",
        ),
    ] = False,
    pid: Pid = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Have a running job take a last checkpoint and end."""
    from .control import stop as ask

    return ask(job, now=now, drain=drain, pid=pid, address=address, as_json=json)


@_checkpoints.command(name="list")
def list_checkpoints(
    directory: Annotated[str, Parameter(help="A path or any fsspec URL.")],
    /,
    *,
    job: Annotated[str | None, Parameter(help="Of this job only.")] = None,
    json: Json = False,
) -> int:
    """List checkpoints, newest first."""
    from .checkpoints import listing
    from .tables import show_listing

    return show_listing(listing(directory, job), directory, as_json=json)


@_checkpoints.command
def show(
    directory: Annotated[str, Parameter(help="A path or any fsspec URL.")],
    number: Annotated[
        int | None, Parameter(help="The checkpoint's number; the newest otherwise.")
    ] = None,
    /,
    *,
    job: Annotated[str | None, Parameter(help="Needed where there are several.")] = None,
    state: Annotated[str | None, Parameter(help="Print the state of this operator.")] = None,
    state_name: Annotated[str | None, Parameter(help="Which, where it has several.")] = None,
    edge: Annotated[
        str | None, Parameter(help="Print the records that were in flight on this edge.")
    ] = None,
    limit: Annotated[
        int, Parameter(validator=validators.Number(gte=1), help="Rows to print at most.")
    ] = 100,
    json: Json = False,
) -> int:
    """Show what one checkpoint holds: its measures, or with --state or --edge the data itself."""
    if state is not None or edge is not None or state_name is not None:
        from .contents import show_contents

        return show_contents(
            directory, job, number, state, state_name, edge, limit=limit, as_json=json
        )
    from .checkpoints import details
    from .tables import show_details

    return show_details(details(directory, job, number), as_json=json)


@_checkpoints.command
def verify(
    directory: Annotated[str, Parameter(help="A path or any fsspec URL.")],
    number: Annotated[int | None, Parameter(help="Only this checkpoint.")] = None,
    /,
    *,
    job: Annotated[str | None, Parameter(help="Of this job only.")] = None,
    json: Json = False,
) -> int:
    """Read and check every byte that checkpoints refer to. Exit code 3 if one is damaged."""
    from .checkpoints import verification
    from .tables import show_verification

    return show_verification(verification(directory, job, number), directory, as_json=json)


@_bench.command
def count(
    *,
    records: Records = 30_000_000,
    parallelism: Parallelism = 2,
    runner: BenchRunner = "processes",
    checkpoint_interval: Interval = "1s",
    checkpoint_dir: Directory = None,
    json: Json = False,
) -> int:
    """Count and sum by key: records per second through a keyed exchange. Exit code 3 if the answer is wrong."""
    from headrace.bench.count import run as measure

    from .tables import show_measured

    found = measure(
        records=records,
        parallelism=parallelism,
        runner=runner,
        checkpoint_interval=None if checkpoint_interval == "none" else checkpoint_interval,
        checkpoint_dir=checkpoint_dir,
    )
    return show_measured(found, as_json=json)


@_bench.command
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

    from .tables import show_measured

    found = measure(
        records=records,
        parallelism=parallelism,
        runner=runner,
        checkpoint_interval=None if checkpoint_interval == "none" else checkpoint_interval,
        checkpoint_dir=checkpoint_dir,
    )
    return show_measured(found, as_json=json)


@_bench.command
def state(
    *,
    size: Annotated[str, Parameter(help="Of the state, such as 1GiB.")] = "1GiB",
    changed_percent: Annotated[
        float, Parameter(validator=validators.Number(gt=0, lte=100), help="Between checkpoints.")
    ] = 1.0,
    checkpoints: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 200,
    records: Annotated[
        int, Parameter(validator=validators.Number(gte=0), help="To count by key; 0: do not.")
    ] = 30_000_000,
    keys: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 10_000_000,
    runner: BenchRunner = "processes",
    json: Json = False,
) -> int:
    """Write incremental checkpoints of RocksDB state, and count by key on it. Exit code 3 if the count is wrong."""
    from headrace.bench.state import run as measure
    from headrace.bench.state_count import run_counts, run_parts

    from ..api.units import size_bytes
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


@_bench.command
def recovery(
    *,
    state: Annotated[str, Parameter(help="Of the state on RocksDB, such as 1GiB.")] = "1GiB",
    inflight: Annotated[str, Parameter(help="In flight, such as 64MiB.")] = "64MiB",
    parallelism: Parallelism = 2,
    rescale_to: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 4,
    kills: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 3,
    runner: Literal["processes", "spark"] = "processes",
    json: Json = False,
) -> int:
    """Kill workers of a job with large state and full queues, then rescale it: how long it stands still, against the floor."""
    from headrace.bench.recovery import run as measure

    from ..api.units import size_bytes
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


@_bench.command
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
    seconds: Annotated[
        float, Parameter(validator=validators.Number(gt=0), help="To measure, of each arm.")
    ] = 15.0,
    rounds: Annotated[
        int,
        Parameter(
            validator=validators.Number(gte=1),
            help="Run all arms so many times, interleaved; the results are medians.",
        ),
    ] = 1,
    json: Json = False,
) -> int:
    """Checkpoint under backpressure (FLIP-76): one result for each mode and sleep, or only for those given."""
    from headrace.bench.flip76 import arms, medians
    from headrace.bench.flip76 import run as measure

    from .tables import show_measured

    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for number in range(rounds):
        for arm in arms(mode, sleep_ms):
            of_arm = found.setdefault(arm, [])
            of_arm.append(
                measure(mode=arm[0], sleep_ms=arm[1], parallelism=parallelism, seconds=seconds)
            )
            if number == rounds - 1:
                show_measured(medians(of_arm), as_json=json)
    return 0


def _ended(sentence: str, code: int, words: Sequence[str]) -> int:
    """Say why the command ended; machines that asked for JSON are told as well."""
    print(f"headrace: {sentence}", file=sys.stderr)
    if "--json" in words:
        from .reporter import print_object

        print_object({"event": "error", "message": sentence, "exit_code": code})
    return code
