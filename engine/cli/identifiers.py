"""The job of `headrace demo`: counts the identifiers in Python source text.

Lines are cut into words, and the words dealt out to a stage that is slow on purpose, so that the
queues before it fill; then words are brought together and counted. `plain_count` counts without any
engine; the two must agree.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..api.read import from_source
from ..connectors.files import FileSource
from ..contract.options import Checkpoints, Network, Restart
from ..operators.aggregations import count
from ..session.job import Job

SLOW = "slow"
TOTALS = "totals"

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_WORDS = pa.schema([("word", pa.string())])


def words(batch: pa.RecordBatch) -> dict[str, list[str]]:
    """Cut lines into identifiers."""
    return {"word": _IDENTIFIER.findall("\n".join(batch.column("line").to_pylist()))}


def slow(batch: pa.RecordBatch, *, pause_s: float) -> pa.RecordBatch:
    """Take `pause_s` for each record, as a model or a remote call would."""
    time.sleep(batch.num_rows * pause_s)
    return batch


def identifiers_job(library: Path, output: Path, checkpoints: Path, *, pause_s: float) -> Job:
    """Make the job.

    Args:
        library: folder of text files; bytes that are not UTF-8 are replaced.
        output: folder for the Parquet files of (word, n).
        checkpoints: folder for checkpoints.
        pause_s: cost of a record in the slow stage.
    """
    lines = from_source(FileSource(str(library), "text", errors="replace"), name="lines")
    found = lines.map_batches(words, schema=_WORDS, name="words")
    slowed = found.rebalance().map_batches(partial(slow, pause_s=pause_s), name=SLOW)
    totals = slowed.key_by("word").aggregate(n=count(), emit="final", name=TOTALS)
    return Job(
        "identifiers",
        totals.write.parquet(str(output), name="out"),
        parallelism=2,
        checkpoints=Checkpoints(str(checkpoints), interval="1s"),
        # Aligned barriers wait in the queues, so a window is kept to a fraction of a second of the
        # slow stage's work.
        network=Network(buffer="64KiB", window="256KiB", heartbeat="200ms", heartbeat_timeout="5s"),
        restart=Restart(backoff="100ms"),
    )


def plain_count(library: Path) -> Counter[str]:
    """Count in plain Python."""
    total: Counter[str] = Counter()
    for text in texts(library):
        total.update(_IDENTIFIER.findall(text))
    return total


def texts(library: Path) -> Iterator[str]:
    """The text of each file."""
    for path in sorted(library.iterdir()):
        yield path.read_bytes().decode("utf-8", "replace")


def written(output: Path) -> Counter[str]:
    """Read the job's output back. A word that was written twice counts with both its numbers."""
    total: Counter[str] = Counter()
    for path in sorted(output.glob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        for word, n in zip(table["word"].to_pylist(), table["n"].to_pylist(), strict=True):
            total[word] += n
    return total
