"""The `headrace` command: what is typed, and how it ends.

Exit codes: 0 done, 1 the job failed, 2 the user's mistake, 3 a check found a problem, 4 storage
unreachable, and 128 + the signal for what a signal ended. A mistake is one sentence on standard
error, never a traceback of ours.

Commands import what they need when they run: `headrace --help` waits neither for Arrow nor for
Spark.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, validators

from ..contract.errors import HeadraceError
from .benchmarks_beside import benchmarks
from .parameters import Json, RunArguments, settings_of, spelled_out
from .streams import OutputLost, give, open_missing, say, unwritable

_UNREACHABLE = 4
_INTERRUPTED = 130
_BROKEN_PIPE = 141

Pid = Annotated[
    int | None, Parameter(help="The process that runs it, where several run a job of that name.")
]
Address = Annotated[
    str | None,
    Parameter(help="The folder where running jobs tell of themselves, if not the usual."),
]
#: A path, so that shells complete names of files.
Target = Annotated[
    Path,
    Parameter(
        help="FILE[:JOB] or MODULE[:JOB], such as job.py:orders; JOB may also be a function"
        " without arguments that returns a job."
    ),
]
Settings = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Any option, as key=value; repeatable."),
]
SavepointMode = Literal["aligned", "unaligned"]

app = App(
    name="headrace",
    help="Stream processing whose checkpoints do not wait for backpressure.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
_checkpoints = App(name="checkpoints", help="Look at the checkpoints in a directory.")
app.command(_checkpoints)
app.command(benchmarks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    open_missing()
    # An interrupted call into Spark is logged with its stack, which tells a user nothing.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Its warnings are notices of the job, which the reporter tells.
    logging.getLogger("headrace.engine.drivers.coordinator_driver").setLevel(logging.ERROR)
    try:
        code = _run(words)
        lost = unwritable(sys.stdout)
    except OutputLost as error:
        lost = error.reason
        unwritable(sys.stdout)
    if lost is not None:
        code = _lost_output(lost)
    unwritable(sys.stderr)
    return code


def _run(words: Sequence[str]) -> int:
    """Run a command to its end, and its last word. Raises: OutputLost."""
    try:
        code = app(spelled_out(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _ended(str(error).strip(), 2, words)
    except HeadraceError as error:
        return _ended(str(error), error.exit_code, words)
    except KeyboardInterrupt:
        return _ended("interrupted", _INTERRUPTED, words)
    except OSError as error:
        # A table that was printed as a whole.
        if unwritable(sys.stdout):
            raise OutputLost(error) from error
        raise
    return code if isinstance(code, int) else 0


def _lost_output(reason: OSError) -> int:
    if isinstance(reason, BrokenPipeError):
        return _BROKEN_PIPE  # the reader of our output has seen enough
    return _ended(f"standard output cannot be written: {reason.strerror}", _UNREACHABLE, ())


@app.command
def run(
    target: Target,
    /,
    *,
    options: RunArguments = None,
    set_: Settings = None,
    json: Json = False,
) -> int:
    """Run a job to its end.

    Arguments win over HEADRACE_* variables, headrace.toml and the code. The first Ctrl-C
    takes a final checkpoint and stops, a second one stops at once.
    """
    from .run import parsed
    from .run import run as run_job

    stated = {} if options is None else settings_of(options)
    return run_job(str(target), stated | parsed(set_ or []), as_json=json)


@app.command
def check(
    target: Target,
    /,
    *,
    options: RunArguments = None,
    set_: Settings = None,
    json: Json = False,
) -> int:
    """Build a job without running it: its tasks, state, columns, options and promises.

    Exit code 2 with a sentence for a job that no run would start.
    """
    from .plans import check as check_job
    from .run import parsed

    stated = {} if options is None else settings_of(options)
    return check_job(str(target), stated | parsed(set_ or []), as_json=json)


@app.command
def graph(
    target: Target,
    /,
    *,
    parallelism: Annotated[
        int | None, Parameter(name=["--parallelism", "-p"], help="Of operators that set none.")
    ] = None,
    json: Json = False,
    svg: Annotated[bool, Parameter(negative="", help="Print a picture: SVG text.")] = False,
) -> int:
    """Draw a job without running it: as a mermaid flowchart, an object or a picture."""
    from .plans import graph as draw

    return draw(str(target), parallelism, as_json=json, as_svg=svg)


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print a script by which a shell completes this command and its words.

    bash: headrace completion bash > ~/.local/share/bash-completion/completions/headrace

    zsh: headrace completion zsh > a folder of $fpath, as _headrace

    fish: headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    give(app.generate_completion(prog_name="headrace", shell=shell))
    return 0


@app.command
def ui(
    directory: Annotated[str, Parameter(help="Of checkpoints: a path or any fsspec URL.")],
    /,
    *,
    job: Annotated[str | None, Parameter(help="Of this job, where there are several.")] = None,
    port: Annotated[
        str | None, Parameter(help="PORT or HOST:PORT; else 127.0.0.1:4323 or the next free port.")
    ] = None,
    json: Json = False,
) -> int:
    """Show the page of a job that does not run, from what it has left in its directory."""
    from .ui import show_recorded

    return show_recorded(directory, job, port, as_json=json)


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


Running = Annotated[
    str | None,
    Parameter(help="The name of a job that runs here; may be left out if only one does."),
]


@app.command
def explain(
    job: Running = None,
    /,
    *,
    pid: Pid = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Say in one sentence what holds a running job back. Exit code 3 if something is wrong."""
    from .looks import explain as ask

    return ask(job, pid=pid, address=address, as_json=json)


@app.command
def status(
    job: Running = None,
    /,
    *,
    watch: Annotated[
        bool, Parameter(negative="", help="Show it every second until the job has ended.")
    ] = False,
    pid: Pid = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Show how a running job stands: its tasks, checkpoints, and what holds it back."""
    from .looks import status as ask

    return ask(job, watch=watch, pid=pid, address=address, as_json=json)


@app.command
def jobs(*, address: Address = None, json: Json = False) -> int:
    """List the jobs that run here, each with the sentence of `headrace explain`."""
    from .looks import listing

    return listing(address=address, as_json=json)


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
        SavepointMode | None, Parameter(help="As the job's checkpoints otherwise.")
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
    savepoint: Annotated[
        str | None,
        Parameter(
            help="End with a savepoint in this directory: exactly there, committed up to it."
        ),
    ] = None,
    mode: Annotated[SavepointMode | None, Parameter(help="Of the savepoint.")] = None,
    pid: Pid = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Have a running job take a last checkpoint and end."""
    from .control import stop as ask

    return ask(
        job,
        now=now,
        drain=drain,
        path=savepoint,
        mode=mode,
        pid=pid,
        address=address,
        as_json=json,
    )


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


def _ended(sentence: str, code: int, words: Sequence[str]) -> int:
    """Say why the command ended; machines that asked for JSON are told as well."""
    say(f"headrace: {sentence}")
    if "--json" in words:
        from .reporter import print_object

        print_object({"event": "error", "message": sentence, "exit_code": code})
    return code
