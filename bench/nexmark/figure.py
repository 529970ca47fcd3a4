"""Draw the results of `headrace bench nexmark`: events per second of each query and engine, with
the range of the rounds.

    headrace bench nexmark --peers flink,bytewax --rounds 3 --json > results.jsonl
    python -m headrace.bench.nexmark.figure results.jsonl docs/nexmark --title "2 cores"

Writes OUT.svg. Needs matplotlib: `pip install --group plot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..figure import command

#: {engine: its colour}
COLOURS = {"headrace": "tab:blue", "flink": "tab:orange", "bytewax": "tab:gray"}
WIDTH = 0.27


def bars(
    results: Sequence[Mapping[str, Any]], queries: Sequence[int], engines: Sequence[str], name: str
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Places, medians, and the distances down and up to the range's ends, of one engine; a query
    without a result has no bar.
    """
    side = (engines.index(name) - (len(engines) - 1) / 2) * WIDTH
    found = [each for each in results if each["engine"] == name]
    places = [queries.index(each["query"]) + side for each in found]
    medians = [each["events_per_s"] for each in found]
    below = [each["events_per_s"] - each["events_per_s_min"] for each in found]
    above = [each["events_per_s_max"] - each["events_per_s"] for each in found]
    return places, medians, below, above


def draw(results: Sequence[Mapping[str, Any]], out: str, title: str) -> None:
    """Draw a bar for each engine and query, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    # The same bytes for the same results, so that a figure that did not change is no change.
    matplotlib.rcParams.update({"svg.hashsalt": "headrace", "font.size": 9})
    from matplotlib import pyplot

    queries = list(dict.fromkeys(each["query"] for each in results))
    engines = list(dict.fromkeys(each["engine"] for each in results))
    figure, panel = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    for engine in engines:
        places, medians, below, above = bars(results, queries, engines, engine)
        style = {"color": COLOURS[engine], "label": engine, "capsize": 2}
        panel.bar(places, medians, WIDTH, yerr=(below, above), **style)
    panel.set_yscale("log")
    panel.set_xticks(range(len(queries)), [f"query {query}" for query in queries])
    panel.set_ylabel("events/s")
    panel.grid(alpha=0.3, axis="y", which="both")
    panel.legend()
    figure.suptitle(title)
    figure.savefig(f"{out}.svg", metadata={"Date": None})
    pyplot.close(figure)


def main(words: Sequence[str] | None = None) -> int:
    """Read results, one JSON object a line, and draw them."""
    return command("python -m headrace.bench.nexmark.figure", draw, "Nexmark, two workers", words)


if __name__ == "__main__":
    raise SystemExit(main())
