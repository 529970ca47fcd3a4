"""Ask a job that runs in another process of this user on this machine."""

from __future__ import annotations

import msgspec

from ..contract.errors import HeadraceError, JobUnreachable, UserError
from . import messages as m
from .folder import NotOurs, RunningFile, run_folder, running
from .line import Line, LineBroken, dial

#: Silence after which the job's process counts as hung: it says something every second.
_SILENCE_S = 15.0


def ask(
    job: str, request: m.Request, *, pid: int | None = None, address: str | None = None
) -> m.Done:
    """Have the job carry a request out, and wait for the answer.

    Args:
        job: its name.
        pid: of the process that runs it; needed where several run a job of that name.
        address: the folder where the job can be found, if not the usual one.

    Raises: UserError for an unknown job, or a request that only the user can mend; JobUnreachable;
    HeadraceError.
    """
    found = find(job, pid=pid, address=address)
    where = f"job {found.job!r} (process {found.pid})"
    try:
        line = dial((found.host, found.port), found.key, found.job)
        try:
            line.send(m.encode(request))
            answer = _answer(line)
        finally:
            line.close()
    except (LineBroken, msgspec.MsgspecError) as reason:
        raise JobUnreachable(f"{where} cannot be reached: {reason}") from reason
    if isinstance(answer, m.Refused):
        raise (UserError if answer.exit_code == UserError.exit_code else HeadraceError)(
            answer.reason
        )
    return answer


def find(job: str, *, pid: int | None = None, address: str | None = None) -> RunningFile:
    """Find a running job. Raises: UserError, with the jobs that run."""
    folder = run_folder(address)
    try:
        there = running(folder)
    except NotOurs as reason:
        raise UserError(f"running jobs cannot be looked up: {reason}") from reason
    found = [said for said in there if said.job == job and pid in (None, said.pid)]
    if len(found) == 1:
        return found[0]
    if not found:
        names = ", ".join(f"{said.job} (process {said.pid})" for said in there) or "none"
        which = repr(job) if pid is None else f"{job!r} in process {pid}"
        raise UserError(f"no job {which} runs here; these run: {names}")
    pids = ", ".join(str(said.pid) for said in found)
    raise UserError(f"several jobs {job!r} run; name one of the processes {pids} with --pid")


def _answer(line: Line) -> m.Done | m.Refused:
    while True:
        answer: m.Answer = m.decode_answer(line.receive(_SILENCE_S))
        if not isinstance(answer, m.Working):
            return answer
