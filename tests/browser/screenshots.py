"""`make screenshots`: the pictures of the page in the documents, from a real job.

python -m tests.browser.screenshots FOLDER
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.services.process import wait_for

from .chromium import Chromium
from .programs import Run

#: Seconds of the job before the first picture: time lines should show something.
_SECONDS = 75

SHOP = """\
def clean(batch):
    return batch.select(["key", "sequence"])

def skew(batch):
    key = pc.if_else(pc.greater(batch["key"], 30), 7, batch["key"])
    return pa.record_batch({"key": key, "sequence": batch["sequence"]})

began = time.monotonic()

class Rules(hr.StatefulProcessor):
    def process_batch(self, key, rows):
        time.sleep(rows.num_rows * 20e-6)
        if time.monotonic() - began > 30 and not os.path.exists("raised"):
            open("raised", "w").close()
            raise ValueError("the model did not answer")
        return rows

clicks = hr.read.sequence(10**9, keys=100, name="clicks", parallelism=1)
cleaned = orders.rebalance().map_batches(clean, schema=S, name="clean")
keyed = cleaned.map_batches(skew, schema=S, name="enrich").key_by("key")
scored = keyed.process(Rules, schema=S, name="score")
archive = cleaned.rebalance().map_batches(clean, schema=S, name="thin")
job = hr.Job(
    "shop",
    scored.key_by("key").aggregate(n=hr.count(), emit="final", name="per_key")
    .write.parquet("out", name="alerts"),
    archive.write.parquet("archive", name="archive"),
    parallelism=4, checkpoints=CHECKPOINTS,
)
"""


def main(folder: Path) -> None:
    """Draw all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        run = Run(Path(place), SHOP)
        chromium = Chromium()
        try:
            chromium.show(run.link)
            time.sleep(_SECONDS)
            chromium.await_text("#sentence", "score")
            for colours in ("light", "dark"):
                chromium.show(run.link, width=1280, height=1010, colours=colours)
                _settle(chromium)
                chromium.save(folder / f"page-{colours}.png")
            chromium.show(run.link, width=400, height=860)
            _settle(chromium)
            chromium.save(folder / "page-narrow.png")
        finally:
            chromium.close()
            run.kill()


def _settle(chromium: Chromium) -> None:
    chromium.await_text("#sentence", "score")
    wait_for(lambda: chromium.run("return document.querySelectorAll('.line').length") > 5, "lines")
    time.sleep(2)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
