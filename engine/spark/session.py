"""The Spark session that carries the workers: an embedded one by default, or one at a master.

Settings for workers that run for weeks in one Spark job: a failed task is started again many times
(`local[N]` alone would never do it, `local[N,F]` does), nothing is speculated, a worker gets a
fresh Python process, and the processes run this very interpreter with this very `sys.path`. Spark
logs only fatal errors, because the death of a worker, for which Spark prints a page of stack trace,
is an everyday event here and reported by the job.

A session made by the user is used without asking and stays as it is; `launcher` refuses one that
cannot work.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ..contract.errors import HeadraceError, UserError
from ..contract.options import RunOptions
from .java import use_java
from .master import check_master

#: How often one worker may fail before Spark gives up the job.
TASK_FAILURES = 32

#: Enough for most rescales, side by side.
_EMBEDDED_SLOTS_MIN = 16

_LOOPBACK = "127.0.0.1"

#: Contexts of sessions that were made here, each of which ends with its own job.
_opened: weakref.WeakSet[SparkContext] = weakref.WeakSet()

_WORKERS: Mapping[str, str] = {
    "spark.task.maxFailures": str(TASK_FAILURES),
    "spark.speculation": "false",
    "spark.excludeOnFailure.enabled": "false",
    "spark.dynamicAllocation.enabled": "false",
    # The remains of a worker in its process must not meet the next worker.
    "spark.python.worker.reuse": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    # Forks workers that have imported the engine already.
    "spark.python.daemon.module": "headrace.engine.spark.daemon",
    # From cancelling a task to killing its Python process; Spark's own default is 2 s.
    "spark.python.task.killTimeout": "500ms",
    "spark.ui.showConsoleProgress": "false",
}

#: On a cluster: when an unreachable executor is given up and its worker started elsewhere. Spark's
#: own default is two minutes, checked once a minute, which is longer than a job waits for its
#: workers.
_CLUSTER: Mapping[str, str] = {
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "2s",
}

# The gateway has a logger of its own, and warns when it is at another level than the root.
_LOGGING = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%ex
"""


def session_of_user(options: RunOptions) -> SparkSession | None:
    """Return the session that the user names, or has made in this process; None: there is none, or
    a master is named.
    """
    if options.spark is not None or options.master is not None:
        return options.spark
    context = SparkContext._active_spark_context
    if context is None or context in _opened:
        return None
    return SparkSession.active()


def open_session(
    job: str,
    *,
    slots: int,
    master: str | None = None,
    ui: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark for one job; the caller stops it.

    Args:
        job: name of the job, which becomes the application's.
        slots: workers that the embedded Spark must have room for.
        master: a master URL; None embeds Spark in this process. There a slot is a permit and not a
            processor, so it gets more than the job needs: a rescale starts the new workers beside
            the old ones.
        ui: show Spark's web page.
        settings: Spark settings that win over those made here.

    Raises:
        UserError: no Java, no such master, or this process has a Spark session already.
        AddressUnreachable: the master does not answer.
        HeadraceError: Spark does not start.
    """
    if SparkContext._active_spark_context is not None:
        raise UserError(
            "this process has a Spark session already and can have only one: "
            "pass it on with spark=..., or stop it first"
        )
    if master is not None:
        check_master(master)
    use_java()
    # Otherwise Spark's workers are whatever `python3` is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    processors = os.cpu_count() or 1
    embedded = f"local[{max(_EMBEDDED_SLOTS_MIN, 2 * slots, processors)}]"
    master = master_with_retries(master or embedded)
    builder = SparkSession.builder.master(master).appName(job)
    chosen = {**_WORKERS, "spark.ui.enabled": str(ui).lower(), **_locality(master)}
    if master.startswith("local["):
        chosen["spark.default.parallelism"] = str(processors)
    with tempfile.TemporaryDirectory(prefix="headrace-spark-") as folder:
        logging = Path(folder, "log4j2.properties")
        logging.write_text(_LOGGING)
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={logging.as_uri()}"
        for name, value in (chosen | dict(settings or {})).items():
            builder = builder.config(name, value)
        try:
            session = builder.getOrCreate()
            _opened.add(session.sparkContext)
            return session
        except (PySparkException, Py4JError) as error:
            raise HeadraceError(f"Spark at {master} does not start: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the first line that tells the reason; Java's stack trace is left out."""
    java = getattr(error, "java_exception", None)
    return str(error if java is None else java).strip().partition("\n")[0]


def master_with_retries(master: str) -> str:
    """Give a local master without a number of failures ours: `local[4]` becomes `local[4,32]`."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    cores = re.fullmatch(r"local\[\s*(\*|\d+)\s*\]", master)
    return f"local[{cores[1]},{TASK_FAILURES}]" if cores else master


def _locality(master: str) -> dict[str, str]:
    """Return what holds only when all of Spark is on this machine, or only when it is not."""
    if not master.startswith("local"):
        return dict(_CLUSTER)
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        # User code is pickled by reference where it is importable here, so the executor must be
        # able to import it.
        "spark.executorEnv.PYTHONPATH": path,
    }
