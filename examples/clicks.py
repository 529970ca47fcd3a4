"""Windows and a join over event time: clicks per page and second, and what was clicked soon after
it was shown.

    headrace run examples/clicks.py --runner threads

Records are up to 50 ms out of order; the watermark waits for them, so nothing is late.
"""

import pyarrow as pa

import headrace as hr

AT = pa.timestamp("ms")
EVENTS = pa.schema([("id", pa.int64()), ("page", pa.int64()), ("at", AT)])


def event(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """A millisecond a record, out of order."""
    ids = batch["sequence"].to_numpy()
    return {"id": ids, "page": batch["key"], "at": pa.array(ids + ids * 7919 % 50).view(AT)}


def events(name: str) -> hr.Stream:
    made = hr.read.sequence(20_000, keys=3, name=name).map_batches(event, schema=EVENTS)
    return made.with_watermark("at", "50ms", name=f"{name}-time")


clicks, shown = events("clicks"), events("shown")
seconds = clicks.key_by("page").window(hr.tumbling("1s")).aggregate(n=hr.count(), name="seconds")
pairs = shown.join(clicks, "page", between=("0s", "5ms"), name="shown-then-clicked")
answers = pairs.key_by("page").aggregate(n=hr.count(), emit="final", name="answers")

job = hr.Job(
    "clicks",
    seconds.write.collect(name="clicks-per-second"),
    answers.write.collect(name="answered"),
    parallelism=2,
)

if __name__ == "__main__":
    job.run()
