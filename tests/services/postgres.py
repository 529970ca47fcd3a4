"""PostgreSQL on the loopback address, with prepared transactions; Debian's, by apt-get if missing.

A server refuses to run as root, so root runs the server as the package's user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .process import Facts, Unavailable, end, launch, run, wait_for
from .service import Service

_PROGRAMS = Path("/usr/lib/postgresql")


class Postgres(Service):
    """A database cluster with the database `postgres`, whose superuser needs no password."""

    #: Ends connections, and then the server.
    stop_signal = signal.SIGINT

    def __init__(self, name: str = "postgres") -> None:
        super().__init__(name)

    @property
    def uri(self) -> str:
        """Where clients connect to."""
        return f"postgresql://postgres@{self.address}/postgres"

    def install(self) -> None:
        """Let apt-get fetch the server, as root."""
        if _program("postgres") is not None:
            return
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise Unavailable("PostgreSQL is not installed, and only root can install it")
        os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
        # Without an index, which is where images begin, no package is found.
        run(["apt-get", "-q", "update"], why="apt-get cannot update")
        run(["apt-get", "-qy", "install", "postgresql"], why="apt-get cannot install PostgreSQL")

    def launch(self, port: int, data: Path) -> Facts:
        """Make the cluster unless a killed server left it, and start the server."""
        cluster = data / "cluster"
        user = _user()
        if not cluster.exists():
            if user:
                shutil.chown(data, user)
            command = [str(_program("initdb")), "-D", str(cluster), "-A", "trust"]
            run([*command, "-U", "postgres", "--no-sync"], why="initdb fails", user=user)
        (cluster / "postmaster.pid").unlink(missing_ok=True)
        options = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": data,
            "max_prepared_transactions": 64,
            "wal_level": "logical",
            "shared_buffers": "64MB",
        }
        settings = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        command = [str(_program("postgres")), "-D", str(cluster), *settings]
        return launch(self.name, command, port, data, user=user)

    def answers(self, port: int) -> bool:
        """Ask by `pg_isready`."""
        command = [str(_program("pg_isready")), "-q", "-h", "127.0.0.1", "-p", str(port)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0

    def kill(self) -> None:
        """End the server and its backends by SIGKILL."""
        facts = self.facts
        backends = list(_children(facts.pid))
        end(facts, signal.SIGKILL)
        for pid in backends:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in backends), "the backends")

    def freeze(self) -> None:
        """Stop the server and its backends."""
        super().freeze()
        for pid in _children(self.facts.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server and its backends go on."""
        for pid in _children(self.facts.pid):
            # Backends come and go.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        super().thaw()

    def psql(self, statement: str) -> list[str]:
        """Run statements by `psql`; return the rows of the result, columns joined by `|`."""
        done = subprocess.run(
            [str(_program("psql")), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", self.uri],
            input=statement,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def _program(name: str) -> Path | None:
    """Return the newest version's program."""
    found = _PROGRAMS.glob(f"*/bin/{name}")
    return max(found, key=lambda path: int(path.parts[-3]), default=None)


def _user() -> str | None:
    return "postgres" if os.geteuid() == 0 else None


def _children(pid: int) -> Iterator[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return (int(child) for child in text.split())
