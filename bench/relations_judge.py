"""What `relations_job` must put out, computed by Spark SQL from the same input as one batch.

Spark has windows and sessions of its own (`window`, `session_window`), so what is compared are two
implementations. To both, records that are exactly a gap apart are in one session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from headrace.engine.spark.session import open_session

from . import relations_job as job

Row = tuple[Any, ...]

#: What `session_window` and `window` take; `at` is in microseconds since 1970.
_AT = "timestamp_micros(at)"
_TUMBLING = f"window({_AT}, '{job.WINDOW_US} microseconds')"
_SLIDING = f"window({_AT}, '{job.WINDOW_US} microseconds', '{job.SLIDE_US} microseconds')"
_SESSION = f"session_window({_AT}, '{job.GAP_US} microseconds')"
_MEET = f"window({_AT}, '{job.MEET_US} microseconds')"
_MEET_SLIDING = f"window({_AT}, '{job.MEET_US} microseconds', '{job.MEET_SLIDE_US} microseconds')"
_MEET_SESSION = f"session_window({_AT}, '{job.MEET_GAP_US} microseconds')"


def _aggregated(window: str) -> str:
    return f"""
        select key, unix_micros(w.start) b, unix_micros(w.end) e, n, total from
            (select key, {window} w, count(*) n, sum(sequence) total from events
             group by key, {window})"""


def _joined(window: str) -> str:
    def sides(table: str) -> str:
        return f"(select *, {window} w from {table})"

    return f"""
        select coalesce(l.key, r.key) key, l.sequence ls, l.at lt, r.sequence rs, r.at rt,
            unix_micros(coalesce(l.w, r.w).start) b, unix_micros(coalesce(l.w, r.w).end) e
        from {sides("events")} l full join {sides("others")} r on l.key = r.key and l.w = r.w"""


#: {output: what it must hold}; times in microseconds.
_QUERIES = {
    "tumbling": _aggregated(_TUMBLING),
    "sliding": _aggregated(_SLIDING),
    "sessions": _aggregated(_SESSION),
    "timed": _aggregated(_TUMBLING),
    "joined": f"""
        select coalesce(l.key, r.key) key, l.sequence ls, l.at lt, r.sequence rs, r.at rt
        from events l full join others r
            on l.key = r.key and r.at between l.at - {job.WITHIN_US} and l.at + {job.WITHIN_US}""",
    "joined_tumbling": _joined(_MEET),
    "joined_sliding": _joined(_MEET_SLIDING),
    # The sessions of both sides' union, with their records; then each of the one side with each of
    # the other.
    "joined_sessions": f"""
        with sessions as (
            select key, {_MEET_SESSION} w, collect_list(struct(side, sequence, at)) records
            from (select *, 'l' side from events union all select *, 'r' side from others)
            group by key, {_MEET_SESSION}
        )
        select key, l.sequence ls, l.at lt, r.sequence rs, r.at rt, unix_micros(w.start) b,
            unix_micros(w.end) e from sessions
        lateral view outer explode(filter(records, x -> x.side = 'l')) as l
        lateral view outer explode(filter(records, x -> x.side = 'r')) as r""",
}


def differences(relations: job.RelationsJob, given: SparkSession | None = None) -> dict[str, int]:
    """{output: rows that it has too many or too few}, told by the session that is given or by one
    of its own.
    """
    with _session(given) as spark:
        for table, lacks in (("events", job.LEFT_LACKS), ("others", job.RIGHT_LACKS)):
            _input(spark, relations, lacks).createOrReplaceTempView(table)
        found = {
            name: _difference(relations, name, spark.sql(query).toArrow())
            for name, query in _QUERIES.items()
        }
    return found | {"ruled": _unruly(relations)}


@contextmanager
def _session(given: SparkSession | None) -> Iterator[SparkSession]:
    """Spark with as many partitions as are worth it here, not the 200 of a cluster."""
    spark = given or open_session("judge", slots=1)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        yield spark
    finally:
        if given is None:
            spark.stop()
        elif before is not None:
            spark.conf.set("spark.sql.shuffle.partitions", before)


def _input(spark: SparkSession, relations: job.RelationsJob, lacks: int) -> Any:
    sequence = job.sequences(lacks, relations.rows)
    columns = {
        "key": job.keys_of(sequence),
        "sequence": sequence,
        "at": job.at_us(sequence),
    }
    return spark.createDataFrame(pa.table(columns))


def _difference(relations: job.RelationsJob, name: str, table: pa.Table) -> int:
    rows = Counter(tuple(map(job.micros, row.values())) for row in _written(relations, name))
    # By position: of a join's columns several have one name.
    columns = (column.to_pylist() for column in table.columns)
    expected = Counter(zip(*columns, strict=True))
    return (rows - expected).total() + (expected - rows).total()


def _unruly(relations: job.RelationsJob) -> int:
    """Records of `ruled` that are not there once; and keys whose records never know all rules, or
    know more than there are.
    """
    rows = _written(relations, "ruled")
    times = Counter(row["sequence"] for row in rows)
    expected = Counter(job.sequences(job.LEFT_LACKS, relations.rows).tolist())
    wrong = (times - expected).total() + (expected - times).total()
    known = dict.fromkeys(range(job.KEYS), 0)
    for row in rows:
        known[row["key"]] = max(known[row["key"]], row["rules"])
    return wrong + sum(most != job.RULES for most in known.values())


def _written(relations: job.RelationsJob, name: str) -> list[dict[str, Any]]:
    files = sorted((relations.folder / name).glob("part-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]
