"""Reads the geometry of a chart from its SVG text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from placer.report.page.text_fit import text_width

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True, slots=True)
class Area:
    """The rectangle of a text or of a bar, and the text or the class."""

    name: str
    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: Area) -> bool:
        return (
            self.left < other.right - 0.1
            and other.left < self.right - 0.1
            and self.top < other.bottom - 0.1
            and other.top < self.bottom - 0.1
        )


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def text_areas(svg: ET.Element) -> list[Area]:
    """Return the areas of all texts that do not have a background of their own."""
    return list(_texts(svg))


def _texts(svg: ET.Element) -> Iterator[Area]:
    for each in svg.iter(f"{SVG}text"):
        classes = each.attrib["class"].split()
        if "halo" in classes:
            continue
        size = 11 if "t2" in classes else 13
        string = "".join(each.itertext()) if len(each) == 0 else (each[-1].tail or "")
        width = text_width(string, size)
        x, y = float(each.attrib["x"]), float(each.attrib["y"])
        before = {"middle": width / 2, "end": width}.get(
            each.attrib.get("text-anchor", ""), 0.0
        )
        left = x - before
        yield Area(string, left, left + width, y - 0.75 * size, y + 0.2 * size)


def pieces(svg: ET.Element) -> list[Area]:
    """Return the areas of all bars."""
    return [
        Area(
            each.attrib["class"],
            (x := float(each.attrib["x"])),
            x + float(each.attrib["width"]),
            (y := float(each.attrib["y"])),
            y + float(each.attrib["height"]),
        )
        for each in svg.iter(f"{SVG}rect")
        if "piece" in each.attrib.get("class", "").split()
    ]


def titles(svg: ET.Element) -> list[str]:
    return [each.text or "" for each in svg.iter(f"{SVG}title")]


def check_readable(markup: str) -> ET.Element:
    """Assert that texts of a chart do not overlap, and that all is inside the chart.
    Return the parsed chart."""
    svg = parse(markup)
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    areas = text_areas(svg)
    for area in [*areas, *pieces(svg)]:
        assert area.left >= -0.1, area
        assert area.right <= width + 0.5, area
        assert area.top >= -0.1, area
        assert area.bottom <= height + 0.1, area
    for first, second in combinations(areas, 2):
        assert not first.overlaps(second), (first, second)
    return svg
