"""Places in a drawing: nothing overlaps, arrows run from left to right and past the boxes."""

from __future__ import annotations

import itertools
import random

import pytest

from headrace.engine.plan.layers import Arrow, Layout, Size, laid_out

BOX = Size(80.0, 40.0)


def drawn(count: int, *arrows: Arrow) -> Layout:
    return laid_out([BOX] * count, arrows)


def test_a_box_stands_behind_all_that_lead_to_it() -> None:
    layout = drawn(4, Arrow(0, 1), Arrow(1, 3), Arrow(2, 3))
    x = [corner.x for corner in layout.corners]
    assert x[0] == x[2] < x[1] < x[3]


def test_sorting_takes_a_crossing_out() -> None:
    layout = drawn(4, Arrow(0, 3), Arrow(1, 2))
    y = [corner.y for corner in layout.corners]
    assert (y[0] < y[1]) == (y[3] < y[2])


def test_a_back_arrow_runs_below_all_boxes() -> None:
    layout = drawn(3, Arrow(0, 1), Arrow(1, 2), Arrow(2, 1, back=True))
    bottom = max(corner.y + BOX.height for corner in layout.corners)
    way = layout.ways[2]
    assert [point.y > bottom for point in way] == [False, False, True, True, False, False]
    assert way[0].x == layout.corners[2].x + BOX.width
    assert way[-1].x == layout.corners[1].x


def test_nothing_to_draw_has_no_size() -> None:
    assert laid_out([], []) == Layout([], [], Size(0.0, 0.0))


@pytest.mark.parametrize("seed", range(20))
def test_no_box_lies_on_another_and_no_arrow_passes_through_one(seed: int) -> None:
    rng = random.Random(seed)
    boxes = [Size(rng.uniform(60, 300), 40.0) for _ in range(rng.randint(2, 12))]
    pairs = [pair for pair in itertools.combinations(range(len(boxes)), 2) if rng.random() < 0.3]
    arrows = [Arrow(*pair) for pair in pairs]
    layout = laid_out(boxes, arrows)
    placed = list(zip(layout.corners, boxes, strict=True))
    for (a, size), (b, other) in itertools.combinations(placed, 2):
        beside = a.x + size.width <= b.x or b.x + other.width <= a.x
        assert beside or a.y + size.height <= b.y or b.y + other.height <= a.y
    for (tail, head, _), way in zip(arrows, layout.ways, strict=True):
        assert way == sorted(way, key=lambda point: point.x)
        # Between two columns there is no box; within a column an arrow is level.
        for one, other_end in itertools.pairwise(way):
            for box, (corner, size) in enumerate(placed):
                within = one.x < corner.x + size.width and corner.x < other_end.x
                if within and box not in (tail, head):
                    assert one.y == other_end.y
                    assert not corner.y <= one.y <= corner.y + size.height
    for corner, size in placed:
        assert corner.x >= 0
        assert corner.x + size.width <= layout.size.width
        assert corner.y >= 0
        assert corner.y + size.height <= layout.size.height
