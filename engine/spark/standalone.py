"""A standalone Spark cluster on this machine, in pieces that can be killed one by one.

Each node is a Worker process, which starts an executor per application and a Python process per
task, as on a real cluster. Tests try the claims about lost workers, executors and nodes here, on
loopback only.

Needs Linux: the processes below a node are found in /proc.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from .java import use_java

#: A JVM that lives for a minute compiles more than that is worth.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_HOST = "127.0.0.1"
_POLL_S = 0.05


class StandaloneCluster:
    """One master and some nodes. A context manager: starts on entry, leaves no process on exit."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 2,
        cores_per_node: int = 1,
        memory_per_node: str = "1g",
        start_timeout_s: float = 60.0,
    ) -> None:
        """Describe the cluster; logs and work files go to `folder`."""
        assert nodes >= 1, f"{nodes} nodes"
        self._folder = folder
        self._nodes = nodes
        self._resources = ["--cores", str(cores_per_node), "--memory", memory_per_node]
        self._start_timeout_s = start_timeout_s
        self._master: subprocess.Popen[bytes] | None = None
        #: By node; a killed node keeps its place.
        self._workers: list[subprocess.Popen[bytes]] = []
        #: "spark://..." once started.
        self.master_url = ""

    def __enter__(self) -> Self:
        use_java()
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._master = self._daemon("master.Master", "master", ["--port", "0"])
            self.master_url = self._log_says(
                "master", self._master, r"Starting Spark master at (\S+)"
            )
            names = [self._start_node() for _ in range(self._nodes)]
            for name, node in zip(names, self._workers, strict=True):
                self._await_node(name, node)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def add_node(self) -> int:
        """Start one more node, wait until the master knows it, and return its number."""
        self._await_node(self._start_node(), self._workers[-1])
        return len(self._workers) - 1

    def _start_node(self) -> str:
        name = f"node-{len(self._workers)}"
        work = ["--work-dir", str(self._folder / name)]
        node = self._daemon("worker.Worker", name, [*self._resources, *work, self.master_url])
        self._workers.append(node)
        return name

    def _await_node(self, name: str, node: subprocess.Popen[bytes]) -> None:
        self._log_says(name, node, r"Successfully registered with master (\S+)")

    def processes(self, node: int) -> list[int]:
        """Return the process ids of a node and its descendants."""
        return descendants(self._workers[node].pid)

    def executors(self, node: int) -> list[int]:
        """Return the process ids of the executors on a node."""
        return [
            pid for pid in self.processes(node) if b"CoarseGrainedExecutorBackend" in _command(pid)
        ]

    def kill_node(self, node: int) -> None:
        """SIGKILL a node and its descendants at once, as in a power failure."""
        _kill_tree(self._workers[node])

    def stop(self) -> None:
        """Kill everything. May be called again."""
        for daemon in [*self._workers, *filter(None, [self._master])]:
            _kill_tree(daemon)

    def _daemon(self, kind: str, name: str, options: list[str]) -> subprocess.Popen[bytes]:
        """Start a daemon of Spark. Its script turns into the JVM itself, so its id is the JVM's."""
        home = Path(pyspark.__file__).parent
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        }
        common = ["--host", _HOST, "--webui-port", "0"]
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [
                    home / "bin" / "spark-class",
                    f"org.apache.spark.deploy.{kind}",
                    *common,
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | environment,
                cwd=self._folder,
                process_group=0,
            )

    def _log_says(self, name: str, daemon: subprocess.Popen[bytes], pattern: str) -> str:
        """Wait for a line in a daemon's log and return the pattern's group."""
        log = self._folder / f"{name}.log"
        deadline_s = time.monotonic() + self._start_timeout_s
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            if daemon.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"Spark's {name} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(_POLL_S)
        return found[1]


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below `pid`, parents before their children."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [pid]
    # The list grows while it is walked.
    for each in found:
        found.extend(children.get(each, ()))
    return found[1:]


def _parents() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # Processes come and go while they are listed.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # "pid (name) state parent ...", where the name may hold anything.
            yield int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _kill_tree(root: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its descendants, the root first: it would start others anew."""
    if root.poll() is None:
        below = descendants(root.pid)
        root.kill()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        root.wait()
