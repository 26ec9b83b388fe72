"""The sections of a page as HTML text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from placer.report.numbers import format_count, format_ms, format_size, plural
from placer.report.page.charts.balance import balance_chart
from placer.report.page.charts.chain import chain_chart
from placer.report.page.charts.curves import curve_charts
from placer.report.page.charts.memory import memory_chart
from placer.report.page.charts.pipeline import pipeline_chart
from placer.report.page.charts.shares import shares_chart
from placer.report.page.charts.timeline import timeline_chart
from placer.report.page.facts import LayerRow, Page, Placement, Purpose, RunFacts
from placer.report.page.picture import draw_placement
from placer.report.page.svg import class_name, element, text
from placer.report.step.facts import StepTime

MOST_LAYERS: Final = 500
"""The number of rows in the table of layers. The search finds all layers."""
_OPEN_LAYERS: Final = 60
"""A longer table of layers is closed until it is opened or printed."""
_MOST_NAMES: Final = 16
"""The number of names in a cell of a table."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page.

    Attributes:
        name: its id.
        link: its short title, for the list of sections.
        title: its title.
        content: its HTML.
    """

    name: str
    link: str
    title: str
    content: str


def sections(page: Page) -> Iterator[Section]:
    """Yield the sections of a page that have facts. Several runs come first."""
    compares = len(page.runs) > 1
    if compares:
        yield from _run_sections(page)
    yield from _build_sections(page)
    if not compares:
        yield from _run_sections(page)
    if page.layers:
        yield Section("layers", "Layers", "Layers", _layers(page.layers))


def _run_sections(page: Page) -> Iterator[Section]:
    if page.runs:
        title = "Runs" if len(page.runs) > 1 else "Run"
        yield Section("runs", title, title, _runs(page))
    if page.curves:
        content = _scroll(curve_charts(page.curves, page.runs))
        yield Section("curves", "Curves", "Curves", content)


def _build_sections(page: Page) -> Iterator[Section]:
    if page.placement is not None:
        content = _placement(page, page.placement)
        yield Section("placement", "Placement", "Placement", content)
    if page.step_time is not None:
        title = f"Why a step takes {format_ms(page.step_time.seconds)}"
        yield Section("time", "Time of a step", title, _time(page, page.step_time))
    elif page.untimed:
        title = "Why a step takes that long"
        yield Section("time", "Time of a step", title, _paragraph(page.untimed))
    if page.memory:
        phase = page.placement.phase if page.placement else "a training step"
        lead = _paragraph(f"The declared memory of each process in {phase}.")
        content = lead + _scroll(memory_chart(page.memory))
        yield Section("memory", "Memory", "Memory", content)
    if len(page.tables) > 1:
        yield Section("tables", "Tables", "Stored parameters", _tables(page))
    if page.schedule:
        yield Section("pipeline", "Pipeline", "Pipeline", _pipeline(page))


def _time(page: Page, step_time: StepTime) -> str:
    advice = [element("li", _with_code(each)) for each in step_time.advice]
    return "".join(
        [
            _paragraph(step_time.sentence, "lead strong"),
            _paragraph(page.untimed) if page.untimed else "",
            _chart("The longest chain of work and messages", chain_chart(step_time)),
            element("h3", text("What would help"))
            + element("ul", *advice, class_="advice")
            if advice
            else "",
            _chart("All threads in this step", timeline_chart(step_time)),
            _chart(
                "The time of each node in all steps", shares_chart(step_time.shares)
            ),
        ]
    )


def _tables(page: Page) -> str:
    rows = [
        (
            row.node,
            format_size(row.nbytes),
            f"{100 * row.share:.0f} %",
            _names(row.parameters),
        )
        for row in page.tables
    ]
    return "".join(
        [
            _paragraph(page.balance or "All nodes of a kind store similar amounts."),
            _scroll(balance_chart(page.tables)),
            html_table(
                ("node", "bytes", "of the mean", "parameters and blocks"),
                rows,
                numbers={1, 2},
                code={0, 3},
            ),
        ]
    )


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    listed = ", ".join(names[:_MOST_NAMES])
    return f"{listed} and {format_count(more)} more" if more > 0 else listed


def _pipeline(page: Page) -> str:
    lead = (
        "The declared schedule, with FLOPs as time. A box has the letter of its task and"
        " the number of its microbatch."
    )
    parts = [_paragraph(lead), _chart("Declared", pipeline_chart(page.schedule))]
    if page.measured_schedule and page.step_time is not None:
        seconds = page.step_time.seconds
        drawn = pipeline_chart(page.measured_schedule, seconds=seconds)
        parts.append(_chart("Measured in the median step", drawn))
    return "".join(parts)


def _runs(page: Page) -> str:
    runs = page.runs
    settings = list(dict.fromkeys(key for run in runs for key in run.settings))
    best = list(dict.fromkeys(key for run in runs for key in run.best))
    metrics = list(dict.fromkeys(key for run in runs for key in run.metrics))
    names = (
        "run",
        *(f"best {name}" for name in best),
        *(["at step"] if best else []),
        *(f"last {name}" for name in metrics),
        "steps",
        "samples/s",
        *settings,
        "ended",
    )
    rows = [
        (
            f"{run.name} (best)" if run.is_best and len(runs) > 1 else run.name,
            *(_metric(run.best.get(name)) for name in best),
            *([_step(run)] if best else []),
            *(_metric(run.metrics.get(name)) for name in metrics),
            format_count(run.steps),
            format_count(run.samples_per_second) if run.samples_per_second else "",
            *(run.settings.get(key, "") for key in settings),
            run.ended,
        )
        for run in runs
    ]
    numbers = range(1, len(names) - 1 - len(settings))
    errors = [
        _paragraph(f"{run.name}: {run.error.partition(chr(10))[0]}")
        for run in runs
        if run.error
    ]
    return "".join(
        [
            _paragraph(page.best, "lead strong") if page.best else "",
            html_table(names, rows, numbers=numbers, code={0}),
            *errors,
        ]
    )


def _step(run: RunFacts) -> str:
    if run.best_step is None:
        return ""
    return f"{format_count(run.best_step)}{' (last)' if run.is_last else ''}"


def _metric(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _chart(title: str, chart: str) -> str:
    return element("h3", text(title)) + _scroll(chart) if chart else ""


def _scroll(chart: str) -> str:
    return element("div", chart, class_="scroll")


def _placement(page: Page, placement: Placement) -> str:
    lead = (
        f"The parts of {placement.phase}. A column is a device and time runs down."
        " An arrow is a message to another node; its label has the bytes of a step."
    )
    return "".join(
        [
            _paragraph(lead),
            _paragraph(page.source) if page.source else "",
            _tools(placement),
            element(
                "div",
                element(
                    "figure",
                    draw_placement(placement),
                    class_="scroll",
                    tabindex="0",
                    aria_label="Picture of the placement",
                ),
                _panel(),
                class_="stage",
            ),
            _paragraph(f"Not drawn: {placement.left_out}")
            if placement.left_out
            else "",
        ]
    )


def _tools(placement: Placement) -> str:
    choices = {"purpose": "purpose"}
    if any(box.flops for box in placement.boxes):
        choices["flops"] = "FLOPs"
    if any(box.nbytes for box in placement.boxes):
        choices["bytes"] = "bytes sent"
    if any(box.seconds is not None for box in placement.boxes):
        choices["time"] = "measured time"
    options = [
        element("option", text(label), value=value) for value, label in choices.items()
    ]
    found = {box.purpose for box in placement.boxes}
    purposes = [purpose for purpose in get_args(Purpose) if purpose in found]
    legend = [
        element(
            "li", element("i"), text(purpose), class_=class_name("purpose", purpose)
        )
        for purpose in purposes
    ]
    notes = []
    if any(arrow.estimated for arrow in placement.arrows):
        notes.append(
            "≤ marks an upper bound: sparse tables send the rows of distinct keys"
        )
    if any(arrow.between_devices for arrow in placement.arrows):
        notes.append("a dashed line is a copy between devices of a node")
    return "".join(
        [
            element(
                "div",
                element(
                    "label",
                    text("Color by"),
                    element("select", *options, id="color", autocomplete="off"),
                    element("span", text("stronger: more"), class_="heat"),
                ),
                element(
                    "label",
                    element("input", type="checkbox", id="fit", autocomplete="off"),
                    text("Fit to the width"),
                ),
                element("ul", *legend, class_="legend"),
                class_="row",
            ),
            _paragraph(f"{'; '.join(notes)}.".capitalize()) if notes else "",
        ]
    )


def _panel() -> str:
    keys = [
        ("Tab", "and arrow keys move between boxes"),
        ("Enter", "opens a box"),
        ("Esc", "closes it"),
        ("/", "starts a search"),
    ]
    lines = [
        element("li", element("kbd", text(key)), text(f" {does}")) for key, does in keys
    ]
    return element(
        "aside",
        element(
            "p",
            text(
                "Select a box to see its layers, its ops, its messages and the reason for"
                " its place."
            ),
            class_="hint",
        ),
        element("ul", *lines, class_="hint keys"),
        id="panel",
        aria_label="Details of a box",
    )


def _layers(layers: Sequence[LayerRow]) -> str:
    rows = [
        (
            layer.name,
            layer.kind,
            layer.output,
            format_count(layer.parameters) if layer.parameters else "",
            layer.place,
        )
        for layer in layers[:MOST_LAYERS]
    ]
    more = len(layers) - len(rows)
    table = html_table(
        ("layer", "kind", "output", "parameters", "place"),
        rows,
        numbers={3},
        code={0, 2, 4},
    )
    if more:
        table += _paragraph(f"{plural(more, 'more layer')}: the search finds them.")
    if len(layers) <= _OPEN_LAYERS:
        return table
    summary = element("summary", text(f"All {plural(len(layers), 'layer')}"))
    return element("details", summary, table)


def html_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    code: Collection[int] = (),
) -> str:
    """Return a table as HTML.

    Args:
        names: the heads of the columns.
        rows: the cells as plain text.
        numbers: columns that are aligned on the right.
        code: columns in a fixed-width font.
    """
    classes = [
        "n" if i in numbers else "code" if i in code else None
        for i in range(len(names))
    ]
    head = [
        element("th", text(name), scope="col", class_="n" if i in numbers else None)
        for i, name in enumerate(names)
    ]
    body = [
        element(
            "tr",
            *(
                element("td", text(cell), class_=class_)
                for cell, class_ in zip(row, classes, strict=True)
            ),
        )
        for row in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *head)),
            element("tbody", *body),
        ),
        class_="wide",
    )


def _paragraph(string: str, class_: str = "lead") -> str:
    return element("p", _with_code(string), class_=class_)


def _with_code(string: str) -> str:
    """Return a text as HTML, with the parts between backticks as code."""
    parts = string.split("`")
    if len(parts) % 2 == 0:
        return text(string)
    return "".join(
        element("code", text(part)) if i % 2 else text(part)
        for i, part in enumerate(parts)
    )
