"""Assigns intervals to parallel lanes, so that the intervals of a lane do not meet."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush


def assign_lanes(intervals: Sequence[tuple[float, float]], gap: float = 0) -> list[int]:
    """Return the lane of each interval, from 0. The number of lanes is the smallest.

    Two intervals of a lane are more than `gap` apart.

    >>> assign_lanes([(0, 5), (3, 8), (6, 9)])
    [0, 1, 0]
    """
    lanes = [0] * len(intervals)
    ends: list[tuple[float, int]] = []  # the ends of lanes in use
    free: list[int] = []
    count = 0
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        start, end = intervals[index]
        while ends and ends[0][0] + gap < start:
            heappush(free, heappop(ends)[1])
        if free:
            lane = heappop(free)
        else:
            lane, count = count, count + 1
        lanes[index] = lane
        heappush(ends, (end, lane))
    return lanes
