"""Writes line charts as SVG, readable on light and on dark pages.

Several panels in a row share the vertical axis; lines of one name have the same colour and
dashes in all of them. Colours are those of Okabe and Ito, which colour-blind people can
tell apart; dashes differ as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 300, 260
LEFT, TOP, GAP = 56, 40, 26
LINE = 18
COLUMN = 220
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7"),
    *("#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"),
)
DASHES = ("", "7 3", "2 2", "9 3 2 3")
STYLE = """\
  .page { fill: #ffffff } .ink { fill: #24292f } .soft { fill: #57606a }
  .grid { stroke: #d8dee4 } .goal { stroke: #57606a; stroke-dasharray: 3 3 }
  text { font: 12px system-ui, sans-serif } .title { font-weight: 600 }
  polyline { fill: none; stroke-width: 1.8 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .ink { fill: #e6edf3 } .soft { fill: #9da7b3 }
    .grid { stroke: #30363d } .goal { stroke: #9da7b3 }
  }
"""


@dataclass(frozen=True)
class Panel:
    """The lines of one panel by name, over what `x` says; the scale may be logarithmic."""

    x: str
    lines: Mapping[str, Points]
    logarithmic: bool = False


@dataclass(frozen=True)
class Axis:
    """Positions of values between `low` and `high`, from 0 to 1."""

    low: float
    high: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high, value = (
            (math.log10(v) if self.logarithmic else v)
            for v in (self.low, self.high, value)
        )
        return (value - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(
                math.ceil(math.log10(self.low)), 1 + int(math.log10(self.high))
            )
            return [10.0**power for power in powers]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, 1 + int(self.high / step + 1e-9))]


def chart(
    title: str,
    y: str,
    bounds: tuple[float, float],
    goal: float | None,
    panels: Sequence[Panel],
) -> str:
    """Return the SVG of panels with values between two bounds of `y`, and a line at `goal`."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    width = LEFT + len(panels) * (WIDTH + GAP)
    legend = TOP + HEIGHT + 56
    columns = (width - LEFT) // COLUMN
    height = legend + LINE * math.ceil(len(names) / columns)
    vertical = Axis(*bounds)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>\n{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="6"/>',
        f'<text class="ink title" x="{LEFT}" y="22">{escape(title)}</text>',
        f'<text class="soft" transform="translate(14 {TOP + HEIGHT / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y)}</text>',
    ]
    for number, panel in enumerate(panels):
        left = LEFT + number * (WIDTH + GAP)
        parts += _panel(panel, left, vertical, goal, names, numbered=number == 0)
    column = (width - LEFT) / columns
    for number, name in enumerate(names):
        x = LEFT + number % columns * column
        y_ = legend + number // columns * LINE
        parts.append(f'<polyline points="{x},{y_} {x + 28},{y_}"{_look(number)}/>')
        parts.append(
            f'<text class="ink" x="{x + 34}" y="{y_ + 4}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _look(number: int) -> str:
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[(number + number // len(COLOURS)) % len(DASHES)]
    return f' style="stroke: {colour}' + (
        f'; stroke-dasharray: {dash}"' if dash else '"'
    )


def _panel(
    panel: Panel,
    left: float,
    vertical: Axis,
    goal: float | None,
    names: Sequence[str],
    numbered: bool,
) -> list[str]:
    values = [x for points in panel.lines.values() for x, _ in points]
    low = min(values) if panel.logarithmic else 0.0
    horizontal = Axis(low, max(values), panel.logarithmic)

    def x_at(value: float) -> float:
        return round(left + WIDTH * horizontal.at(value), 1)

    def y_at(value: float) -> float:
        return round(TOP + HEIGHT * (1 - min(max(vertical.at(value), 0), 1)), 1)

    bottom, right = TOP + HEIGHT, left + WIDTH
    parts = []
    for tick in vertical.ticks():
        y = y_at(tick)
        parts.append(f'<path class="grid" d="M{left} {y}H{right}"/>')
        if numbered:
            parts.append(
                f'<text class="soft" x="{left - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>'
            )
    for tick in horizontal.ticks():
        x = x_at(tick)
        parts.append(f'<path class="grid" d="M{x} {TOP}V{bottom}"/>')
        parts.append(
            f'<text class="soft" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        )
    middle = left + WIDTH / 2
    parts.append(
        f'<text class="soft" x="{middle}" y="{bottom + 34}" text-anchor="middle">'
        f"{escape(panel.x)}</text>"
    )
    if goal is not None:
        parts.append(f'<path class="goal" d="M{left} {y_at(goal)}H{right}"/>')
    for name, points in panel.lines.items():
        path = " ".join(f"{x_at(x)},{y_at(y)}" for x, y in points)
        parts.append(f'<polyline points="{path}"{_look(names.index(name))}/>')
    return parts
