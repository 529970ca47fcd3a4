"""The example from Kafka to Kafka, against a real broker: every click is counted once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.services.kafka import Kafka

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kafka_windows.py"
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLICKS = 5_000


@pytest.mark.services
@pytest.mark.slow
def test_clicks_are_counted_once_in_each_window(kafka: Kafka, tmp_path: Path) -> None:
    source = kafka.create_topic(f"clicks-{time.time_ns()}")
    target = kafka.create_topic(f"counts-{time.time_ns()}")
    expected = produce(kafka, source)
    text = EXAMPLE.read_text(encoding="utf-8")
    for old, new in (
        ('"clicks-per-page", servers', f'"{target}", servers'),
        ('"clicks", servers=SERVERS', f'"{source}", servers=SERVERS, stop="latest"'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "job.py").write_text(text, encoding="utf-8")
    run(kafka, tmp_path)
    found = [json.loads(value) for value in kafka.consume(target)]
    counts = {(row["page"], row["window_start"]): row["clicks"] for row in found}
    assert len(counts) == len(found), "a window was written twice"
    assert sum(counts.values()) == CLICKS
    assert Counter(counts.values()) == Counter(expected.values())


def produce(kafka: Kafka, topic: str) -> Counter[tuple[str, int]]:
    """Write clicks out of order, 10 a second; return how many each page and window has."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.address})
    expected: Counter[tuple[str, int]] = Counter()
    for number in range(CLICKS):
        tenths = number + number * 7919 % 20
        page = f"page-{number % 3}"
        at = BEGIN + timedelta(milliseconds=100 * tenths)
        value = json.dumps({"page": page, "at": at.isoformat()})
        # By time, so that neither partition is ahead of the other for long.
        producer.produce(topic, value, partition=number % 2)
        expected[page, tenths // 100] += 1
    assert producer.flush(30.0) == 0
    return expected


def run(kafka: Kafka, folder: Path) -> None:
    code = "import sys; from headrace.engine.cli.main import main; sys.exit(main())"
    words = ["run", "job.py", "--runner", "threads"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=os.environ | {"KAFKA": kafka.address},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
