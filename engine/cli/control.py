"""`headrace rescale`, `savepoint` and `stop`: ask the process that runs a job, and tell the
outcome.
"""

from __future__ import annotations

from ..contract.errors import HeadraceError, UserError
from ..contract.numbers import milliseconds, seconds
from ..contract.places import absolute, redacted
from ..control import messages as m
from ..control.client import ask
from .reporter import print_object
from .streams import give


def rescale(
    job: str, parallelism: int, *, pid: int | None, address: str | None, as_json: bool
) -> int:
    """Have a job go on at another parallelism, and wait until it runs. Raises: HeadraceError."""
    done = ask(job, m.Rescale(parallelism), pid=pid, address=address)
    assert isinstance(done, m.RescaleDone), done
    if as_json:
        print_object(
            {
                "job": job,
                "parallelism": done.parallelism,
                "checkpoint": done.checkpoint,
                "stop_ms": milliseconds(done.stop_ns),
                "duration_ms": milliseconds(done.duration_ns),
                "standstill_ms": milliseconds(done.standstill_ns),
            }
        )
    else:
        give(
            f"job {job} runs at parallelism {done.parallelism}, from chk-{done.checkpoint}: it took"
            f" {seconds(done.duration_ns)}, and the job stood still for"
            f" {seconds(done.standstill_ns)} of it"
        )
    return 0


def savepoint(
    job: str,
    path: str | None,
    *,
    mode: str | None,
    pid: int | None,
    address: str | None,
    as_json: bool,
) -> int:
    """Have a job take a savepoint, and wait until it is complete. Raises: HeadraceError."""
    # The other process may stand in another folder.
    place = path if path is None else absolute(path)
    done = ask(job, m.Savepoint(place, mode), pid=pid, address=address)
    assert isinstance(done, m.SavepointDone), done
    if as_json:
        print_object({"job": job, "savepoint": redacted(done.path)})
    else:
        give(redacted(done.path))
    return 0


def stop(
    job: str,
    *,
    now: bool,
    drain: bool,
    path: str | None,
    mode: str | None,
    pid: int | None,
    address: str | None,
    as_json: bool,
) -> int:
    """Have a job end, with a savepoint in the directory `path` if given, and wait for its end.

    Raises: HeadraceError.
    """
    if now and drain:
        raise UserError(
            "--now and --drain exclude each other: a job that ends at once drains nothing"
        )
    if now and path is not None:
        raise UserError(
            "--now and --savepoint exclude each other: a job that ends at once takes no savepoint"
        )
    if mode is not None and path is None:
        raise UserError("--mode is of the savepoint; give --savepoint DIR too, or leave it out")
    place = None if path is None else absolute(path)
    done = ask(job, m.Stop(now, drain, place, mode), pid=pid, address=address)
    assert isinstance(done, m.StopDone), done
    if drain and not done.finished:
        raise HeadraceError(
            f"job {job} has stopped, but not drained: another stop or a rescale came before"
        )
    if as_json:
        print_object(
            {
                "job": job,
                "stopped": True,
                "drained": drain,
                "last_checkpoint": done.checkpoint,
                "savepoint": None if done.savepoint is None else redacted(done.savepoint),
            }
        )
    else:
        how = "has drained and ended" if drain else "has stopped"
        last = "" if done.checkpoint is None else f"; the last checkpoint is chk-{done.checkpoint}"
        if done.savepoint is not None:
            last = f"; restore={redacted(done.savepoint)} goes on from there"
        give(f"job {job} {how}{last}")
    return 0
