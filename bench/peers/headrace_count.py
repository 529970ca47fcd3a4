"""The keyed count in headrace: `headrace bench count` of two worker processes, which checks its
answer itself.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..count import run


def main() -> None:
    """Run once and print the result."""
    parser = argparse.ArgumentParser()
    for name in ("records", "keys", "multiplier", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--interval-s", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    found = run(
        records=given.records,
        parallelism=given.workers,
        checkpoint_interval=f"{given.interval_s}s" if given.interval_s else None,
        checkpoint_dir=str(given.folder / "checkpoints"),
    )
    result = {
        "records": found["records"],
        "running_s": found["records"] / found["records_per_s"],
        "checkpoints": found["checkpoints"],
        "correct": found["correct"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
