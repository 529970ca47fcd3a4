"""Places for boxes and arrows: a drawing in layers, from left to right.

A box stands one layer behind the last box that leads to it. An arrow over several layers keeps a
free place in each layer between, so it passes no box. Boxes of a layer are sorted by the mean
height of their neighbours, which takes most crossings out of graphs of a job's size; nothing is
promised about the rest. Back-arrows run below everything.

Source: Sugiyama, Tagawa, Toda 1981 (layers, free places, barycentres).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_GAP_X = 96.0
_GAP_Y = 18.0
_MARGIN = 12.0
#: Height of the place that an arrow keeps in a layer that it passes.
_FREE = 8.0
#: Times that the layers are sorted from left to right and back.
_SWEEPS = 3


class Point(NamedTuple):
    """A place in a drawing, in pixels; y grows downwards."""

    x: float
    y: float


class Size(NamedTuple):
    """Of a box, in pixels."""

    width: float
    height: float


class Arrow(NamedTuple):
    """From one box to another, by their indexes; without `back` arrows there is no cycle."""

    tail: int
    head: int
    back: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing.

    Attributes:
        corners: of each box, the upper left one.
        ways: of each arrow, the points that it passes.
        size: of the drawing, margins included.
    """

    corners: list[Point]
    ways: list[list[Point]]
    size: Size


def laid_out(boxes: Sequence[Size], arrows: Sequence[Arrow]) -> Layout:
    """Place boxes and arrows."""
    layers = _layers(len(boxes), arrows)
    columns, chains = _columns(layers, arrows)
    _sort(columns, chains)
    widths = [max(_size(p, boxes).width for p in column) for column in columns]
    lefts = [_MARGIN + sum(widths[:i]) + _GAP_X * i for i in range(len(columns))]
    middles = _middles(columns, boxes)
    corners = [
        Point(
            lefts[layers[i]] + (widths[layers[i]] - box.width) / 2, middles[i, -1] - box.height / 2
        )
        for i, box in enumerate(boxes)
    ]
    below = max((c.y + b.height for c, b in zip(corners, boxes, strict=True)), default=0.0)
    ends = _ends(boxes, arrows, corners)
    ways: list[list[Point]] = []
    for number, (arrow, (start, end)) in enumerate(zip(arrows, ends, strict=True)):
        # Level to the edge of the column first: a neighbour above or below may be wider.
        right, left = (
            lefts[layers[arrow.tail]] + widths[layers[arrow.tail]],
            lefts[layers[arrow.head]],
        )
        if arrow.back:
            below += _GAP_Y
            right, left = right + _GAP_X / 4, left - _GAP_X / 4
            passed = [Point(right, below), Point(left, below)]
        else:
            passed = []
            for layer in range(layers[arrow.tail] + 1, layers[arrow.head]):
                y = middles[-1, number, layer]
                passed += [Point(lefts[layer], y), Point(lefts[layer] + widths[layer], y)]
        ways.append([start, Point(right, start.y), *passed, Point(left, end.y), end])
    return _moved(corners, ways, boxes)


#: (box, -1), or (-1, arrow, layer) for the free place of an arrow.
_Place = tuple[int, ...]


def _layers(count: int, arrows: Sequence[Arrow]) -> list[int]:
    """The layer of each box: the number of arrows on the longest way to it."""
    layers = [0] * count
    for _ in range(count):  # enough for the longest way
        for arrow in arrows:
            if not arrow.back:
                layers[arrow.head] = max(layers[arrow.head], layers[arrow.tail] + 1)
    return layers


def _columns(
    layers: Sequence[int], arrows: Sequence[Arrow]
) -> tuple[list[list[_Place]], list[tuple[_Place, _Place]]]:
    """The places of each layer, and the pairs of neighbours that arrows join."""
    columns: list[list[_Place]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for box, layer in enumerate(layers):
        columns[layer].append((box, -1))
    pairs: list[tuple[_Place, _Place]] = []
    for number, arrow in enumerate(arrows):
        if arrow.back:
            continue
        before: _Place = (arrow.tail, -1)
        for layer in range(layers[arrow.tail] + 1, layers[arrow.head]):
            free: _Place = (-1, number, layer)
            columns[layer].append(free)
            pairs.append((before, free))
            before = free
        pairs.append((before, (arrow.head, -1)))
    return columns, pairs


def _sort(columns: list[list[_Place]], pairs: Sequence[tuple[_Place, _Place]]) -> None:
    """Sort each column by the mean position of its neighbours in the column before it, then in the
    one behind it.
    """
    before: dict[_Place, list[_Place]] = {}
    behind: dict[_Place, list[_Place]] = {}
    for tail, head in pairs:
        before.setdefault(head, []).append(tail)
        behind.setdefault(tail, []).append(head)
    position = {p: float(i) for column in columns for i, p in enumerate(column)}

    def sort(column: list[_Place], neighbours: dict[_Place, list[_Place]]) -> None:
        def mean(place: _Place) -> float:
            found = [position[n] for n in neighbours.get(place, [])]
            return sum(found) / len(found) if found else position[place]

        column.sort(key=mean)
        # Positions are counted from the column's middle: columns differ in length.
        position.update((p, i - (len(column) - 1) / 2) for i, p in enumerate(column))

    for _ in range(_SWEEPS):
        for column in columns:
            sort(column, before)
        for column in reversed(columns):
            sort(column, behind)


def _size(place: _Place, boxes: Sequence[Size]) -> Size:
    return boxes[place[0]] if place[0] >= 0 else Size(0.0, _FREE)


def _middles(columns: Sequence[Sequence[_Place]], boxes: Sequence[Size]) -> dict[_Place, float]:
    """The y of each place's middle; columns are centred on 0."""
    middles: dict[_Place, float] = {}
    for column in columns:
        heights = [_size(place, boxes).height for place in column]
        y = -(sum(heights) + _GAP_Y * (len(column) - 1)) / 2
        for place, height in zip(column, heights, strict=True):
            middles[place] = y + height / 2
            y += height + _GAP_Y
    return middles


def _ends(
    boxes: Sequence[Size], arrows: Sequence[Arrow], corners: Sequence[Point]
) -> list[tuple[Point, Point]]:
    """Where each arrow leaves its tail's right side and enters its head's left one; arrows that
    share a side are spread over it, in the order of their other ends.
    """

    def shares(side: int, other: int) -> list[float]:
        """How far down its side each arrow touches its box, 0 to 1."""
        found = [0.0] * len(arrows)
        for box in range(len(boxes)):
            here = [i for i, arrow in enumerate(arrows) if arrow[side] == box]
            here.sort(key=lambda i: (arrows[i].back, corners[arrows[i][other]].y))
            for rank, i in enumerate(here):
                found[i] = (rank + 1) / (len(here) + 1)
        return found

    starts, ends = shares(0, 1), shares(1, 0)
    return [
        (
            Point(
                corners[arrow.tail].x + boxes[arrow.tail].width,
                corners[arrow.tail].y + boxes[arrow.tail].height * starts[i],
            ),
            Point(
                corners[arrow.head].x, corners[arrow.head].y + boxes[arrow.head].height * ends[i]
            ),
        )
        for i, arrow in enumerate(arrows)
    ]


def _moved(
    corners: Sequence[Point], ways: Sequence[Sequence[Point]], boxes: Sequence[Size]
) -> Layout:
    """The drawing with its upper left corner at 0, 0."""
    far = [Point(c.x + b.width, c.y + b.height) for c, b in zip(corners, boxes, strict=True)]
    every = [*corners, *far, *(point for way in ways for point in way)]
    if not every:
        return Layout([], [], Size(0.0, 0.0))
    left, top = min(p.x for p in every) - _MARGIN, min(p.y for p in every) - _MARGIN
    width = max(p.x for p in every) - left + _MARGIN
    height = max(p.y for p in every) - top + _MARGIN
    return Layout(
        [Point(p.x - left, p.y - top) for p in corners],
        [[Point(p.x - left, p.y - top) for p in way] for way in ways],
        Size(width, height),
    )
