"""Ask a job that runs in another process of this user on this machine."""

from __future__ import annotations

import msgspec

from ..contract.errors import HeadraceError, JobUnreachable, UserError
from ..observation.observed import Observation
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
    return ask_at(find(job, pid=pid, address=address), request)


def look_at(found: RunningFile) -> Observation:
    """Look at a running job. Raises: JobUnreachable; HeadraceError."""
    done = ask_at(found, m.Look())
    assert isinstance(done, m.Looked), done
    return done.observation


def ask_at(found: RunningFile, request: m.Request) -> m.Done:
    """Have a job that was found carry a request out. Raises: as `ask`."""
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


def jobs(address: str | None = None) -> list[RunningFile]:
    """Return the running jobs, by name and process. Raises: UserError."""
    try:
        return running(run_folder(address))
    except NotOurs as reason:
        raise UserError(f"running jobs cannot be looked up: {reason}") from reason


def find(job: str | None, *, pid: int | None = None, address: str | None = None) -> RunningFile:
    """Find a running job; None: the only one there is.

    Raises: UserError, with the jobs that run.
    """
    there = jobs(address)
    found = [said for said in there if job in (None, said.job) and pid in (None, said.pid)]
    if len(found) == 1:
        return found[0]
    if not found:
        names = ", ".join(f"{said.job} (process {said.pid})" for said in there) or "none"
        which = "" if job is None else f" {job!r}"
        where = "" if pid is None else f" in process {pid}"
        raise UserError(f"no job{which}{where} runs here; these run: {names}")
    if job is None:
        names = ", ".join(f"{said.job} (process {said.pid})" for said in found)
        raise UserError(f"several jobs run; name one of them: {names}")
    pids = ", ".join(str(said.pid) for said in found)
    raise UserError(f"several jobs {job!r} run; name one of the processes {pids} with --pid")


def _answer(line: Line) -> m.Done | m.Refused:
    while True:
        answer: m.Answer = m.decode_answer(line.receive(_SILENCE_S))
        if not isinstance(answer, m.Working):
            return answer
