"""Draw the results of the FLIP-76 experiment: checkpoint duration, throughput and latency over the
slow stage's sleep, by mode; or those of `headrace bench calls`: checkpoint duration over the length
of one call. Bars are the range over the rounds; a triangle is an arm without a
complete checkpoint: the one under way at the end had taken so long by then.

    headrace bench flip76 --rounds 3 --json > results.jsonl
    python -m headrace.bench.figure results.jsonl docs/flip76 --title "2026-11-21, 2 virtual cores"

Writes OUT.svg and OUT.png. Needs matplotlib: `pip install --group plot`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Results, where to write to without suffix, title.
Draw = Callable[[Sequence[Mapping[str, Any]], str, str], None]

#: Key of a result, the axis' words.
PANELS = (
    ("checkpoint_p50_ms", "checkpoint p50 (ms)"),
    ("records_per_s", "records/s"),
    ("latency_p50_ms", "latency p50 (ms)"),
    ("written_bytes", "bytes written a checkpoint"),
)
#: The colours of docs/overtaking.svg.
BLUE, ORANGE, GREY, INK = "#2f6db5", "#d9730d", "#5b6b7b", "#1f2933"
#: Colour, marker and line of a mode.
STYLES = {
    "aligned": (BLUE, "o", "-"),
    "unaligned": (ORANGE, "s", "-"),
    "continuous": (ORANGE, "D", "--"),
    "none": (GREY, "x", ":"),
}
#: The same of a kind of call.
KINDS = {
    "sleeping": (ORANGE, "s", "-"),
    "computing": (INK, "D", "-"),
    "holding": (BLUE, "o", "-"),
    "isolated": (ORANGE, "^", ":"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one line: where they are, their values, and the range of each value."""

    at: list[str]
    values: list[float]
    least: list[float]
    most: list[float]

    @property
    def errors(self) -> list[list[float]]:
        """Distances below and above the values, as matplotlib wants them."""
        below = [value - least for value, least in zip(self.values, self.least, strict=True)]
        above = [most - value for value, most in zip(self.values, self.most, strict=True)]
        return [below, above]


def series(
    results: Sequence[Mapping[str, Any]],
    name: str,
    key: str,
    *,
    lines: str = "mode",
    axis: str = "sleep_ms",
) -> Line:
    """The line of a mode, by rising sleep, or of what else `lines` and `axis` name; arms without a
    value have no point.
    """
    found = sorted(
        (r[axis], r[key], r.get(f"{key}_least", r[key]), r.get(f"{key}_most", r[key]))
        for r in results
        if r[lines] == name and r.get(key)
    )
    return Line(
        [f"{at:g}" for at, *_ in found],
        [value for _, value, *_ in found],
        [min(least, value) for _, value, least, _ in found],
        [max(most, value) for _, value, _, most in found],
    )


def unfinished(results: Sequence[Mapping[str, Any]], mode: str) -> Line:
    """Arms in which no checkpoint completed: how long the one under way had taken at the end."""
    return series([r for r in results if not r["checkpoint_p50_ms"]], mode, "underway_ms")


def draw(results: Sequence[Mapping[str, Any]], out: str, title: str) -> None:
    """One panel a measure, one line a mode; the floor beside the durations."""
    figure, axes = new_figure(2, 2, (9, 6.5))
    sleeps = [f"{sleep:g}" for sleep in sorted({r["sleep_ms"] for r in results})]
    for panel, (key, words) in zip(axes.flat, PANELS, strict=True):
        panel.plot(sleeps, [None] * len(sleeps))  # fixes the order of the axis
        _draw_modes(panel, results, key)
        panel.set_yscale("log")
        panel.set_xlabel("sleep per record (ms)")
        panel.set_ylabel(words)
        panel.grid(alpha=0.3, which="both")
        panel.legend()
    save(figure, out, title)


def _draw_modes(panel: Any, results: Sequence[Mapping[str, Any]], key: str) -> None:
    for mode, (color, marker, style) in STYLES.items():
        line = series(results, mode, key)
        if line.values:
            shape = {"color": color, "marker": marker, "linestyle": style, "capsize": 3}
            panel.errorbar(line.at, line.values, yerr=line.errors, label=mode, **shape)
        if key == "checkpoint_p50_ms" and (late := unfinished(results, mode)).values:
            words = f"{mode}: none complete, at least"
            panel.plot(late.at, late.values, "^", color=color, fillstyle="none", label=words)
    if key == "checkpoint_p50_ms":
        floor = series(results, "unaligned", "floor_ms")
        panel.plot(floor.at, floor.values, ":", color=INK, label="floor of unaligned")


def draw_calls(results: Sequence[Mapping[str, Any]], out: str, title: str) -> None:
    """Checkpoint duration over the length of one call, one line a kind of call; the diagonal is a
    checkpoint that waits for one call.
    """
    figure, panel = new_figure(1, 1, (6.5, 4.5))
    lengths = sorted({r["call_s"] for r in results})
    words = "as long as one call"
    panel.plot(lengths, [1e3 * s for s in lengths], "--", color=GREY, label=words)
    for kind, (color, marker, style) in KINDS.items():
        keys: dict[str, str] = {"lines": "kind", "axis": "call_s"}
        line = series(results, kind, "checkpoint_p50_ms", **keys)
        shape = {"color": color, "marker": marker, "linestyle": style, "capsize": 3}
        at = [float(length) for length in line.at]
        panel.errorbar(at, line.values, yerr=line.errors, label=kind, **shape)
        open_ended = [r for r in results if not r["checkpoint_p50_ms"]]
        late = series(open_ended, kind, "underway_ms", **keys)
        if late.values:
            at = [float(length) for length in late.at]
            words = f"{kind}: none complete, at least"
            panel.plot(at, late.values, "^", color=color, fillstyle="none", label=words)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("one call of the user's function (s)")
    panel.set_ylabel(f"{results[0]['mode']} checkpoint p50 (ms)")
    panel.grid(alpha=0.3, which="both")
    panel.legend()
    save(figure, out, title)


def new_figure(rows: int, columns: int, inches: tuple[float, float]) -> tuple[Any, Any]:
    """A figure without a screen, and its panels."""
    import matplotlib

    matplotlib.use("Agg")
    # The same bytes for the same results, so that a figure that did not change is no change.
    matplotlib.rcParams.update({"svg.hashsalt": "headrace", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=inches, layout="constrained")
    return figure, axes


def save(figure: Any, out: str, title: str) -> None:
    """Write OUT.svg and OUT.png."""
    from matplotlib import pyplot

    figure.suptitle(title)
    for suffix, metadata in (("svg", {"Date": None}), ("png", None)):
        figure.savefig(f"{out}.{suffix}", metadata=metadata, dpi=120)
    pyplot.close(figure)


def command(prog: str, draw: Draw, title: str, words: Sequence[str] | None) -> int:
    """Read results, one JSON object a line, and draw them."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", help="without suffix")
    parser.add_argument("--title", default=title)
    given = parser.parse_args(words)
    lines = given.results.read_text().splitlines()
    draw([json.loads(line) for line in lines if line.strip()], given.out, given.title)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Draw the results of `flip76` or of `calls`."""
    return command("python -m headrace.bench.figure", _draw_either, "", words)


def _draw_either(results: Sequence[Mapping[str, Any]], out: str, title: str) -> None:
    drawn = draw_calls if results[0]["bench"] == "calls" else draw
    drawn(results, out, title)


if __name__ == "__main__":
    raise SystemExit(main())
