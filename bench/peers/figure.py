"""Draw the results of `headrace bench peers`: records per second of each engine, without
checkpoints and with one each second, with the range of the rounds.

    headrace bench peers --json > results.jsonl
    python -m headrace.bench.peers.figure results.jsonl docs/peers --title "2026-11-22, 2 cores"

Writes OUT.svg. Needs matplotlib: `pip install --group plot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..figure import command

#: Interval of a result, its colour.
COLOURS = {"none": "tab:gray", "1s": "tab:blue"}
WIDTH = 0.38


def bars(
    results: Sequence[Mapping[str, Any]], names: Sequence[str], interval: str
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Places, medians, and the distances down and up to the range's ends; an engine without a
    result has no bar.
    """
    side = -WIDTH / 2 if interval == "none" else WIDTH / 2
    found = [
        (names.index(each["peer"]) + side, each)
        for each in results
        if each["checkpoint_interval"] == interval
    ]
    medians = [each["records_per_s"] for _, each in found]
    below = [each["records_per_s"] - each["records_per_s_min"] for _, each in found]
    above = [each["records_per_s_max"] - each["records_per_s"] for _, each in found]
    return [place for place, _ in found], medians, below, above


def draw(results: Sequence[Mapping[str, Any]], out: str, title: str) -> None:
    """Draw two bars an engine, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    # The same bytes for the same results, so that a figure that did not change is no change.
    matplotlib.rcParams.update({"svg.hashsalt": "headrace", "font.size": 9})
    from matplotlib import pyplot

    names = list(dict.fromkeys(each["peer"] for each in results))
    figure, panel = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for interval, colour in COLOURS.items():
        places, medians, below, above = bars(results, names, interval)
        words = "no checkpoints" if interval == "none" else "a checkpoint each second"
        panel.bar(places, medians, WIDTH, yerr=(below, above), color=colour, label=words, capsize=3)
    panel.set_yscale("log")
    panel.set_xticks(range(len(names)), names)
    panel.set_ylabel("records/s")
    panel.grid(alpha=0.3, axis="y", which="both")
    panel.legend()
    figure.suptitle(title)
    figure.savefig(f"{out}.svg", metadata={"Date": None})
    pyplot.close(figure)


def main(words: Sequence[str] | None = None) -> int:
    """Read results, one JSON object a line, and draw them."""
    return command(
        "python -m headrace.bench.peers.figure", draw, "a keyed count, two workers", words
    )


if __name__ == "__main__":
    raise SystemExit(main())
