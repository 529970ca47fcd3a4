"""Exactly once from end to end: Kafka, windows over event time, Kafka.

    headrace run examples/kafka_windows.py --runner processes

Offsets of the source, open windows and the sink's transactions belong to one checkpoint. The sink
writes into a Kafka transaction (begin), a checkpoint asks it to have all written (pre-commit), and
the transaction becomes visible when the checkpoint is complete (commit). After a failure the job
goes on from its last checkpoint, commits what that names, and aborts the rest.

The topics `clicks` and `clicks-per-page` must exist; KAFKA names the brokers. A click is JSON:
{"page": "home", "at": "2026-01-01T12:00:00Z"}.
"""

import os

import pyarrow as pa

import headrace as hr

SERVERS = os.environ.get("KAFKA", "localhost:9092")
CLICK = pa.schema([("page", pa.string()), ("at", pa.timestamp("ms", tz="UTC"))])

clicks = hr.read.kafka("clicks", servers=SERVERS, columns=["value"], value=CLICK, name="clicks")
pages = clicks.with_watermark("at", "5s", name="event-time").key_by("page")
counts = pages.window(hr.tumbling("10s")).aggregate(clicks=hr.count(), name="counts")

job = hr.Job(
    "kafka-windows",
    counts.write.kafka("clicks-per-page", servers=SERVERS, key="page", name="clicks-per-page"),
    parallelism=2,
    checkpoints=hr.Checkpoints("checkpoints", interval="1s"),
)

if __name__ == "__main__":
    job.run()
