"""The slots and addresses of a Spark session, asked before the workers are submitted.

Every worker occupies a slot for the life of the job and waits for all its peers, so a job with one
slot too few would hang. Spark knows the number of tasks that can run at once, for every kind of
cluster and with `spark.task.cpus` considered, since barrier jobs need the answer. That method is
private to Spark's own code, which the JVM does not enforce.

`require_slots` ignores other jobs of the session; `active_tasks` counts them.
"""

from __future__ import annotations

import logging
import time

from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from ..contract.errors import UserError

_log = logging.getLogger(__name__)

_POLL_S = 0.1


def classic_context(spark: SparkSession) -> SparkContext:
    """Return the session's context.

    Raises:
        UserError: a Spark Connect session has none.
    """
    try:
        return spark.sparkContext
    except PySparkAttributeError as error:
        raise UserError(
            "a Spark Connect session cannot carry the workers, since it has no SparkContext: "
            "use a classic session, or master=..."
        ) from error


def driver_address(context: SparkContext) -> str:
    """Return the address on which the session's executors reach this process."""
    if context._jsc.sc().isLocal():
        return "127.0.0.1"
    host = context.getConf().get("spark.driver.host")
    assert host is not None, "a running Spark context knows its driver's address"
    return host


def require_slots(context: SparkContext, needed: int, *, timeout_s: float) -> None:
    """Return when Spark can run `needed` tasks at once; a cluster gets `timeout_s` to grow.

    Raises:
        UserError: Spark has too few slots, or would start workers twice.
    """
    if context.getConf().get("spark.speculation", "false") == "true":
        raise UserError(
            "spark.speculation is on in this Spark session and would start workers twice: "
            "set it to false"
        )
    if grows_on_demand(context):
        return
    patience_s = 0.0 if context._jsc.sc().isLocal() else timeout_s
    deadline_s = time.monotonic() + patience_s
    told = False
    while (available := slots(context)) < needed:
        if not told and patience_s:
            told = True
            _log.warning(
                "the job needs %d slots, Spark has %d (master %s); waiting up to %.0f s for"
                " executors",
                needed,
                available,
                context.master,
                patience_s,
            )
        if time.monotonic() >= deadline_s:
            raise UserError(
                f"the job needs {needed} slots, Spark has {available} (master {context.master}): "
                "lower the parallelism, or give Spark more cores"
            )
        time.sleep(_POLL_S)


def tell_of_busy_slots(context: SparkContext, needed: int) -> None:
    """Say what the workers will have to wait for, if Spark cannot start all of them now."""
    total = slots(context)
    free = total - active_tasks(context)
    if total < needed:
        _log.warning(
            "the job needs %d slots, Spark has %d; dynamic allocation is to add executors",
            needed,
            total,
        )
    elif free < needed:
        _log.warning(
            "the job needs %d slots, and %d of Spark's %d slots are free; it waits until other jobs"
            " of the session end",
            needed,
            free,
            total,
        )


def slots(context: SparkContext) -> int:
    """Return how many tasks Spark can run at once with the executors it has now."""
    spark = context._jsc.sc()
    profile = spark.resourceProfileManager().defaultResourceProfile()
    return int(spark.maxNumConcurrentTasks(profile))


def active_tasks(context: SparkContext) -> int:
    """Return how many tasks run now, of any job of the session; Spark may be a moment behind."""
    tracker = context.statusTracker()
    stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def grows_on_demand(context: SparkContext) -> bool:
    """Return True if executors come only when tasks wait for them, so that none can be counted
    before.
    """
    local = context._jsc.sc().isLocal()
    return not local and context.getConf().get("spark.dynamicAllocation.enabled") == "true"
