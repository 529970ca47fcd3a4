"""The claims about real clusters: whatever dies, only what it carried is started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.engine.spark.standalone import StandaloneCluster, descendants

if TYPE_CHECKING:
    from .conftest import Roster

pytestmark = pytest.mark.spark

WAIT_S = 240.0

#: A driver of its own, since this process has a Spark session already. It runs the roster's
#: entry on the cluster until FOLDER/stop exists, then prints "stopped".
DRIVER = """
import sys, time
from pathlib import Path
from headrace.engine.contract.launcher import WorkerProgram
from headrace.engine.spark.launcher import SparkLauncher
from headrace.engine.spark.session import open_session
from headrace.engine.spark.standalone import QUICK_JAVA

master, folder = sys.argv[1], Path(sys.argv[2])

def entry(program, incarnation, host):
    import os
    name = f"{incarnation.worker}.{incarnation.number}"
    (folder / f"part-{name}").write_text(f"{os.getpid()} {host}")
    (folder / f"part-{name}").rename(folder / name)
    while not (folder / "stop").exists():
        time.sleep(0.02)

settings = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
spark = open_session("cluster", slots=2, master=master, settings=settings)
launcher = SparkLauncher(spark, workers=2, entry=entry, stops_session=True)
failures = []
launcher.start(WorkerProgram("job", ("127.0.0.1", 9), b"secret", b"plan", 2), failures.append)
while not (folder / "stop").exists():
    time.sleep(0.02)
launcher.stop(timeout_s=60)
print("stopped", launcher.coordinator_host, failures)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster", nodes=3, start_timeout_s=WAIT_S) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.usefixtures("only_long")
def test_a_lost_python_worker_executor_and_node_each_restart_alone(
    cluster: StandaloneCluster, roster: Roster
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.master_url, str(roster.folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        ((number, undisturbed),) = roster.wait_for(0, starts=1).items()
        pid = roster.newest(1, starts=1)
        # The third, idle one too: whatever dies, its worker finds a daemon that can fork.
        wait_for(lambda: all(has_daemon(cluster, node) for node in range(3)))
        os.kill(pid, signal.SIGKILL)
        pid = roster.newest(1, starts=2)
        os.kill(executor_above(cluster, pid), signal.SIGKILL)
        pid = roster.newest(1, starts=3)
        cluster.kill_node(node_above(cluster, pid))
        pid = roster.newest(1, starts=4)
        assert roster.pids(0) == {number: undisturbed}
        roster.stop()
        output, _ = driver.communicate(timeout=WAIT_S)
    finally:
        driver.kill()
        driver.wait()
    assert output == "stopped 127.0.0.1 []\n"
    roster.wait_until_dead([pid, undisturbed])


def has_daemon(cluster: StandaloneCluster, node: int) -> bool:
    return any(
        b"headrace.engine.spark.daemon" in command_of(pid)
        for executor in cluster.executors(node)
        for pid in descendants(executor)
    )


def command_of(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "condition not met in time"
        time.sleep(0.05)


def executor_above(cluster: StandaloneCluster, pid: int) -> int:
    executors = cluster.executors(node_above(cluster, pid))
    return next(executor for executor in executors if pid in descendants(executor))


def node_above(cluster: StandaloneCluster, pid: int) -> int:
    return next(node for node in range(3) if pid in cluster.processes(node))
