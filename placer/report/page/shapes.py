"""Rectangles and lines of a picture."""

from __future__ import annotations

from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle with the upper left corner (x, y), in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn arrow.

    Attributes:
        points: the corners of its line, from the source to the target. Neighboring points
            have an equal x or an equal y.
        label: the area of its label.
        text: the label.
        thickness: the width of its line.
    """

    points: tuple[Point, ...]
    label: Rect
    text: str
    thickness: float
