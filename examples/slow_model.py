"""A model that is slower than its source: queues fill, and checkpoints get through all the same.

    headrace run examples/slow_model.py --runner processes

It takes about twenty seconds. Meanwhile, in another terminal:

    headrace rescale slow-model 4
    headrace checkpoints show checkpoints

Or kill one of its processes: it goes on from the last checkpoint. However it went, every number is
written once.
"""

import time

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr


class Model:
    """Made once per subtask: the place to load what is large."""

    def __init__(self) -> None:
        self.factor = 0.5

    def __call__(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        time.sleep(batch.num_rows * 20e-6)
        return {
            "sequence": batch["sequence"],
            "score": pc.multiply(batch["key"].cast(pa.float64()), self.factor),
        }


SCORED = pa.schema([("sequence", pa.int64()), ("score", pa.float64())])

numbers = hr.read.sequence(2_000_000, keys=100, name="numbers")
scored = numbers.rebalance().map_batches(Model, schema=SCORED, name="model")

job = hr.Job(
    "slow-model",
    scored.write.parquet("scored", name="scored"),
    parallelism=2,
    checkpoints=hr.Checkpoints("checkpoints", interval="1s", mode="unaligned"),
)

if __name__ == "__main__":
    job.run()
