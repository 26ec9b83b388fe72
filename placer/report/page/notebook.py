"""Shows plans and results in notebooks: pictures as HTML that needs no style of the page."""

from __future__ import annotations

import base64
import re

import msgspec

from placer.compiler.build_or_spec import load_build
from placer.errors import PlacerError
from placer.plan.plan import Plan
from placer.report.page.charts.curves import draw_curves
from placer.report.page.charts.shares import shares_chart
from placer.report.page.curves import HistoryLine, curves_from
from placer.report.page.picture import draw_standalone, read_style
from placer.report.page.placement import placement_of
from placer.report.page.svg import element, text
from placer.runtime.control.result import Result

_SVG_TAG = re.compile(r"<svg [^>]*>")
_NUMBER = re.compile(r' (width|height)="([0-9.]+)"')
_BACKGROUND = ":root { background: var(--paper); }"
_LABEL = re.compile(r' aria-label="([^"]*)"')


def html_of(value: object) -> str:
    """Return a plan as the picture of its placement, or a result as its curves.

    A picture is an image with its own style: it neither changes the notebook's style nor
    needs it.

    Args:
        value: a `Plan` or a `Result`.
    """
    head = element("pre", text(repr(value)))
    if isinstance(value, Plan):
        return head + _placement(value)
    assert isinstance(value, Result)
    return head + "".join(map(image, _charts(value)))


def _placement(plan: Plan) -> str:
    if plan.folder is None:
        return ""
    try:
        build = load_build(plan.folder)
        if build.plan.digest != plan.digest:
            return _note(f"'{plan.folder}' contains another build now: no picture")
        return image(draw_standalone(placement_of(build)))
    except PlacerError as error:
        return _note(f"no picture: {error.message}")


def _note(string: str) -> str:
    return element("p", text(string))


def _charts(result: Result) -> list[str]:
    """Return the curves of a result, and the shares of its nodes with a trace."""
    drawn: list[str] = []
    if result.has_history:
        lines = (msgspec.convert(line, HistoryLine) for line in result.history)
        drawn += draw_curves(curves_from("this run", lines))
    if result.shares:
        drawn.append(shares_chart(result.shares))
    return [_with_style(svg) for svg in drawn]


def _with_style(svg: str) -> str:
    """Return a chart with its style sheet, as a file of its own."""
    style = "".join(map(read_style, ("colors.css", "picture.css", "charts.css")))
    return svg.replace(">", f">{element('style', style)}", 1)


def image(svg: str) -> str:
    """Return an SVG file as an HTML image of the same size."""
    tag = _SVG_TAG.match(svg)
    assert tag is not None
    # A notebook may be dark while the system is light, so the image has a background.
    svg = svg.replace(">", f">{element('style', _BACKGROUND)}", 1)
    size = dict(_NUMBER.findall(tag[0]))
    label = _LABEL.search(tag[0])
    data = base64.b64encode(svg.encode()).decode()
    # The label is escaped already.
    alt = label[1] if label is not None else ""
    return (
        f'<img src="data:image/svg+xml;base64,{data}" alt="{alt}"'
        f' width="{size["width"]}" height="{size["height"]}"'
        ' style="max-width:100%;height:auto">'
    )
