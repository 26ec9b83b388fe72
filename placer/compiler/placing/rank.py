"""Ranks placements by their predicted step. Steps of nearly equal time count as equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

EQUAL: Final = 10
"""The percentage by which a step may be longer than the best and still count as equal:
predictions are not more precise."""


class Figures(NamedTuple):
    """What a placement costs. Of equal steps, the least of the other figures wins, in the
    order of the fields.

    Attributes:
        step: the nanoseconds of a step.
        nodes: the number of nodes that run anything.
        cuts: the number of stages, less one.
        memory: the bytes of the device that holds most.
        nbytes: the bytes sent in a step.
        names: the names of the first op of each stage.
    """

    step: int
    nodes: int
    cuts: int
    memory: int
    nbytes: int
    names: tuple[str, ...]


def rank(items: Iterable[T], figures: Callable[[T], Figures]) -> list[T]:
    """Return placements from the best to the worst.

    Those whose step is at most 10 % longer than the shortest are equal, and come first. The
    same holds for the shortest of the others, and so on.

    Example:
        >>> two = Figures(100, 2, 1, 0, 0, ("a", "b"))
        >>> one = Figures(108, 1, 0, 0, 0, ("a",))
        >>> rank([two, one], lambda each: each) == [one, two]
        True
    """
    left = sorted(items, key=figures)
    ranked: list[T] = []
    while left:
        most = figures(left[0]).step * (100 + EQUAL) // 100
        count = sum(figures(each).step <= most for each in left)
        ranked += sorted(left[:count], key=lambda each: figures(each)[1:])
        left = left[count:]
    return ranked
