from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from support.placements import all_reduce_model, placements, sparse_model

from placer.report.page.facts import Placement
from placer.report.page.geometry import Geometry, place_boxes
from placer.report.page.shapes import Point, Rect

Segment = tuple[Point, Point]


@settings(max_examples=60, deadline=None)
@given(placements())
def test_random_placements_are_clear(placement: Placement) -> None:
    check(placement, place_boxes(placement))


@pytest.mark.parametrize("make", [sparse_model, all_reduce_model])
def test_placements_are_clear(make: Callable[[], Placement]) -> None:
    check(make(), place_boxes(make()))


def check(placement: Placement, geometry: Geometry) -> None:
    """Check that boxes, labels and lines do not cover each other."""
    labels = [arrow.label for arrow in geometry.arrows]
    for first, second in combinations([*geometry.boxes, *labels], 2):
        assert not overlap(first, second)
    for rect in [*geometry.boxes, *labels]:
        assert inside(rect, geometry)
    for arrow in geometry.arrows:
        for start, end in pairwise(arrow.points):
            assert start[0] == end[0] or start[1] == end[1]
            line = Rect(
                min(start[0], end[0]),
                min(start[1], end[1]),
                abs(end[0] - start[0]),
                abs(end[1] - start[1]),
            )
            assert inside(line, geometry)
            assert not any(overlap(line, box) for box in geometry.boxes)
    for (i, first), (k, second) in combinations(enumerate(geometry.arrows), 2):
        one, other = placement.arrows[i], placement.arrows[k]
        if one.source != other.source and one.target != other.target:
            assert not any(
                lie_on_each_other(a, b)
                for a in pairwise(first.points)
                for b in pairwise(second.points)
            )
    for arrow, drawn in zip(placement.arrows, geometry.arrows, strict=True):
        source, target = geometry.boxes[arrow.source], geometry.boxes[arrow.target]
        assert drawn.points[0][1] == source.bottom
        assert drawn.points[-1][1] == target.y
        assert source.x < drawn.points[0][0] < source.right
        assert target.x < drawn.points[-1][0] < target.right
        assert drawn.points[-2][1] < target.y - 8  # room for the head


def overlap(first: Rect, second: Rect) -> bool:
    return (
        first.x < second.right
        and second.x < first.right
        and first.y < second.bottom
        and second.y < first.bottom
    )


def inside(rect: Rect, geometry: Geometry) -> bool:
    return (
        rect.x >= 0 and rect.y >= 0
        and rect.right <= geometry.width and rect.bottom <= geometry.height
    )  # fmt: skip


def lie_on_each_other(first: Segment, second: Segment) -> bool:
    """Return True if two segments share more than a point."""
    for axis in (0, 1):
        other = 1 - axis
        level = first[0][axis]
        if all(point[axis] == level for point in (*first, *second)):
            a = sorted(point[other] for point in first)
            b = sorted(point[other] for point in second)
            return min(a[1], b[1]) > max(a[0], b[0])
    return False


def test_same_rows_are_aligned() -> None:
    placement = sparse_model()
    geometry = place_boxes(placement)
    tops: dict[int, set[float]] = {}
    for box, rect in zip(placement.boxes, geometry.boxes, strict=True):
        tops.setdefault(box.row, set()).add(rect.y)
    assert all(len(each) == 1 for each in tops.values())
    assert len({y for each in tops.values() for y in each}) == len(tops)
