"""A service of tests as a process: started once, found again by another program, ended by its pid.

A service outlives the program that starts it. So its facts lie in a file: pid, start time (a pid
may be used again), port, and the folder of its data. A lock keeps two programs from starting the
same service at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Jars, logs and facts of services. Ignored by git.
FOLDER = ROOT / ".services"
#: How long a service may take to answer after its start, or to end.
WAIT_S = 120.0


class Unavailable(Exception):
    """The service cannot be installed on this machine; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What another program must know of a running service.

    Attributes:
        started: the process's start time, in the kernel's clock ticks.
        data: folder of its data, removed when the service is stopped.
    """

    pid: int
    started: str
    port: int
    data: str


@contextmanager
def locked() -> Iterator[None]:
    """Keep other programs from starting or stopping services."""
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_facts(name: str) -> Facts | None:
    """Return the facts of a running service; None: it does not run."""
    try:
        facts = Facts(**json.loads((FOLDER / f"{name}.json").read_text()))
    except FileNotFoundError:
        return None
    return facts if is_running(facts) else None


def write_facts(name: str, facts: Facts) -> None:
    """Let other programs find the service."""
    (FOLDER / f"{name}.json").write_text(json.dumps(asdict(facts)))


def last_facts(name: str) -> Facts | None:
    """Return the facts of a service that runs, or has been killed."""
    with suppress(FileNotFoundError):
        return Facts(**json.loads((FOLDER / f"{name}.json").read_text()))
    return None


def start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks; None: it is no more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


def is_running(facts: Facts) -> bool:
    """Tell whether the very process of these facts lives."""
    return start_time(facts.pid) == facts.started


def launch(
    name: str, command: Sequence[str], port: int, data: Path, *, user: str | None = None
) -> Facts:
    """Start a process of its own session, which outlives this one; its output goes to a log.

    Args:
        user: whom the process runs as; None: as this one.
    """
    with open(FOLDER / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=data,
            user=user,
        )
    _LAUNCHED.append(process)
    return Facts(process.pid, start_time(process.pid) or "", port, str(data))


#: Children of this program; reaped where their end is awaited.
_LAUNCHED: list[subprocess.Popen[bytes]] = []


def end(facts: Facts, number: signal.Signals) -> None:
    """Send a signal that ends the process, and wait for its end."""
    if is_running(facts):
        os.kill(facts.pid, signal.SIGCONT)
        os.kill(facts.pid, number)
    wait_for(lambda: _has_ended(facts), f"the end of process {facts.pid}")


def _has_ended(facts: Facts) -> bool:
    for process in _LAUNCHED:
        process.poll()
    return not is_running(facts)


def forget(name: str, facts: Facts) -> None:
    """Remove the facts and the data of a stopped service."""
    (FOLDER / f"{name}.json").unlink(missing_ok=True)
    shutil.rmtree(facts.data, ignore_errors=True)


def wait_for(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Wait until `condition` holds. Raises: TimeoutError."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not within {wait_s:.0f} s; see {FOLDER}")
        time.sleep(0.05)


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def log_tail(name: str, lines: int = 15) -> str:
    """Return the end of a service's log."""
    with suppress(FileNotFoundError):
        return "\n".join((FOLDER / f"{name}.log").read_text().splitlines()[-lines:])
    return ""


def run(command: Sequence[str], *, why: str, user: str | None = None) -> str:
    """Run a command to its end, without input; return its output.

    Raises: Unavailable, with `why` and the end of the output, when the command fails.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=user,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"{why}: {done.stdout.strip()[-400:]}")
    return done.stdout
