"""Draw the results of the FLIP-76 experiment: checkpoint duration, throughput and latency over the
slow stage's sleep, by mode.

    headrace bench flip76 --rounds 3 --json > results.jsonl
    python -m headrace.bench.figure results.jsonl docs/flip76 --title "2026-11-21, 2 virtual cores"

Writes OUT.svg and OUT.png. Needs matplotlib: `pip install --group plot`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Key of a result, the axis' words.
PANELS = (
    ("checkpoint_p50_ms", "checkpoint p50 (ms)"),
    ("records_per_s", "records/s"),
    ("latency_p50_ms", "latency p50 (ms)"),
    ("written_bytes", "bytes written a checkpoint"),
)
STYLES = {"aligned": "o-", "unaligned": "s-", "continuous": "^--", "none": "x:"}


def series(
    results: Sequence[Mapping[str, Any]], mode: str, key: str
) -> tuple[list[str], list[float]]:
    """Sleeps and values of one line, by rising sleep; arms in which no checkpoint completed have no
    point.
    """
    found = sorted((r["sleep_ms"], r[key]) for r in results if r["mode"] == mode and r[key])
    return [f"{sleep:g}" for sleep, _ in found], [value for _, value in found]


def draw(results: Sequence[Mapping[str, Any]], out: str, title: str) -> None:
    """One panel a measure, one line a mode; the floor beside the durations."""
    import matplotlib

    matplotlib.use("Agg")
    # The same bytes for the same results, so that a figure that did not change is no change.
    matplotlib.rcParams.update({"svg.hashsalt": "headrace", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    sleeps = [f"{sleep:g}" for sleep in sorted({r["sleep_ms"] for r in results})]
    for panel, (key, words) in zip(axes.flat, PANELS, strict=True):
        panel.plot(sleeps, [None] * len(sleeps))  # fixes the order of the axis
        for mode, style in STYLES.items():
            at, values = series(results, mode, key)
            if values:
                panel.plot(at, values, style, label=mode)
        if key == "checkpoint_p50_ms":
            at, values = series(results, "unaligned", "floor_ms")
            panel.plot(at, values, "k:", label="floor of unaligned")
        panel.set_yscale("log")
        panel.set_xlabel("sleep per record (ms)")
        panel.set_ylabel(words)
        panel.grid(alpha=0.3, which="both")
        panel.legend()
    figure.suptitle(title)
    for suffix, metadata in (("svg", {"Date": None}), ("png", None)):
        figure.savefig(f"{out}.{suffix}", metadata=metadata, dpi=120)
    pyplot.close(figure)


def main(words: Sequence[str] | None = None) -> int:
    """Read results, one JSON object a line, and draw them."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.figure")
    parser.add_argument("results", type=Path)
    parser.add_argument("out", help="without suffix")
    parser.add_argument("--title", default="the FLIP-76 experiment")
    given = parser.parse_args(words)
    lines = given.results.read_text().splitlines()
    draw([json.loads(line) for line in lines if line.strip()], given.out, given.title)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
