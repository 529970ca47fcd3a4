"""The folder of this user's running jobs, with a file for each.

A file holds the job's name, process id, address, and the secret for requests. So the folder is 0700
and its files 0600, and neither may belong to another user or be a link made by one. Any reader
removes the file of a process that has ended, and passes over a broken file.

The folder is `$XDG_RUNTIME_DIR/headrace`, or `headrace-UID` in the system's folder for temporary
files.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

import msgspec

from headrace.recovery.layout import job_folder

_FILE_BYTES_MAX = 16 * 1024


class NotOurs(Exception):
    """The folder cannot be used safely; the message says why."""


class RunningFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file of a running job.

    `started` is the start time of its process, in the kernel's words, and tells a reused process id
    apart.
    """

    job: str
    pid: int
    started: str
    host: str
    port: int
    secret: str

    @property
    def key(self) -> bytes:
        """The secret as bytes."""
        return base64.b64decode(self.secret)


def run_folder(address: str | None = None) -> Path:
    """Return the usual folder, or the given one instead."""
    if address is not None:
        return Path(address)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime, "headrace")
    return Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")


def publish(folder: Path, job: str, host: str, port: int, secret: bytes) -> Path:
    """Tell where this process's job can be reached. Returns the file. Raises: NotOurs, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(folder)
    pid = os.getpid()
    said = RunningFile(job, pid, _started(pid), host, port, base64.b64encode(secret).decode())
    path = folder / f"{job_folder(job)}-{pid}-{secrets.token_hex(4)}.json"
    draft = path.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(said))
    draft.rename(path)
    return path


def running(folder: Path) -> list[RunningFile]:
    """Return the running jobs, by name and process; remove files of ended processes.

    Raises: NotOurs.
    """
    if not folder.exists():
        return []
    _check(folder)
    found = []
    for path in sorted(folder.glob("*.json")):
        said = _read(path)
        if said is None:
            continue
        if _started(said.pid) == said.started:
            found.append(said)
        else:
            withdraw(path)
    return sorted(found, key=lambda said: (said.job, said.pid, said.port))


def withdraw(path: Path) -> None:
    """The job has ended. May be repeated."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _check(folder: Path) -> None:
    """Refuse a folder of another user, whose files could name another user's processes."""
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise NotOurs(f"{folder} is not a folder of this user")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise NotOurs(f"{folder} can be read by others; chmod 700 {folder}")


def _read(path: Path) -> RunningFile | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            said = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=RunningFile)
            _ = said.key
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return said


def _started(pid: int) -> str:
    """When the process started, empty if there is none: the 22nd field of /proc/PID/stat."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _alive(pid)
    return "" if fields[0] in "ZX" else fields[19]


def _alive(pid: int) -> str:
    """Where there is no /proc: whether the process is there at all."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return ""
    return "alive"
