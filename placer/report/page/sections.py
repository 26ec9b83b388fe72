"""The sections of a page as HTML text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, get_args

from placer.report.numbers import (
    format_count,
    format_flops,
    format_ms,
    format_size,
    plural,
)
from placer.report.page.charts.balance import balance_chart
from placer.report.page.charts.categories import categories_in
from placer.report.page.charts.chain import chain_chart
from placer.report.page.charts.memory import memory_chart
from placer.report.page.charts.pipeline import pipeline_chart
from placer.report.page.charts.shares import shares_chart
from placer.report.page.charts.timeline import timeline_chart
from placer.report.page.facts import (
    Arrow,
    Details,
    Page,
    Placement,
    Purpose,
    SparseTableRow,
)
from placer.report.page.html import (
    Section,
    chart_with_title,
    html_table,
    paragraph,
    scroll,
    with_code,
)
from placer.report.page.picture import draw_placement
from placer.report.page.run_sections import run_sections
from placer.report.page.svg import class_name, element, text
from placer.report.page.tables import memory_of_rows
from placer.report.step.facts import StepTime
from placer.system.listed import list_names

MOST_LAYERS: Final = 500
"""The largest number of rows in the table of layers. The search finds all layers."""
_OPEN_LAYERS: Final = 60
"""A longer table of layers is collapsed at first."""
_MOST_NAMES: Final = 16
"""The largest number of names in a cell of a table."""


def sections(page: Page) -> Iterator[Section]:
    """Yield the sections that have facts. A page about several runs begins with runs."""
    compares = len(page.runs) > 1
    if compares:
        yield from run_sections(page)
    yield from _build_sections(page)
    if not compares:
        yield from run_sections(page)
    if page.layers:
        yield Section("layers", "Layers", _layers(page))


def _build_sections(page: Page) -> Iterator[Section]:
    if page.placement is not None:
        content = _placement(page, page.placement)
        yield Section("placement", "Placement", content)
    if page.step_time is not None:
        title = f"Why a step takes {format_ms(page.step_time.seconds)}"
        yield Section("time", title, _time(page, page.step_time))
    elif page.untimed:
        yield Section("time", "Time of a step", paragraph(page.untimed))
    if page.memory:
        phase = page.placement.phase if page.placement else "a training step"
        lead = paragraph(
            f"The memory that each process needs in {phase}, as the compiler computes it."
            " After a bar: its memory, and the limit in the spec if any."
        )
        if page.sparse:
            lead += paragraph(memory_of_rows(page.sparse))
        content = lead + scroll(memory_chart(page.memory))
        yield Section("memory", "Memory", content)
    if len(page.tables) > 1 or page.sparse:
        yield Section("tables", "Stored parameters", _tables(page))
    if page.schedule:
        yield Section("pipeline", "Pipeline", _pipeline(page))


def _time(page: Page, step_time: StepTime) -> str:
    advice = [element("li", with_code(each)) for each in step_time.advice]
    return "".join(
        [
            paragraph(step_time.sentence, "lead strong"),
            _load(page),
            paragraph(page.untimed) if page.untimed else "",
            _threads_legend(step_time),
            chart_with_title(
                "The longest chain of the median step",
                chain_chart(step_time),
                "Each piece waits for the piece before it. Only a shorter chain makes the"
                " step shorter; all other work runs at the same time.",
            ),
            element("h3", text("What would help"))
            + element("ul", *advice, class_="advice")
            if advice
            else "",
            chart_with_title(
                "All threads in this step",
                timeline_chart(step_time),
                "A row is a thread of a node. A call inside another call is drawn below it.",
            ),
            chart_with_title(
                "The time of each node in all traced steps",
                shares_chart(step_time.shares, has_legend=False),
            ),
        ]
    )


def _load(page: Page) -> str:
    """Return the load of other programs during the run of a page about one run."""
    loads = [run.load for run in page.runs]
    return (
        paragraph(f"{loads[0]}.".capitalize()) if len(loads) == 1 and loads[0] else ""
    )


def _tables(page: Page) -> str:
    rows = [
        (
            row.node,
            format_size(row.nbytes),
            f"{100 * row.share:.0f} %",
            list_names(row.parameters, _MOST_NAMES),
        )
        for row in page.tables
    ]
    parts = []
    if len(rows) > 1:
        parts = [
            paragraph(page.balance or "Nodes of the same kind store similar amounts."),
            scroll(balance_chart(page.tables)),
            html_table(
                ("node", "bytes", "% of the mean", "parameters and blocks"),
                rows,
                numbers={1, 2},
                code={0, 3},
            ),
        ]
    return "".join(parts) + _sparse_tables(page.sparse)


def _sparse_tables(tables: Sequence[SparseTableRow]) -> str:
    if not tables:
        return ""
    rows = [
        (
            table.name,
            table.nodes,
            "unknown" if table.rows is None else format_count(table.rows),
            "unknown" if table.nbytes is None else format_size(table.nbytes),
        )
        for table in tables
    ]
    note = (
        "The rows and bytes on all nodes at the end of the run, with optimizer slots."
    )
    if any(table.rows is None for table in tables):
        note = "A sparse table stores a row for each key of the training data."
    names = ("table", "nodes", "rows", "bytes")
    table = html_table(names, rows, numbers={2, 3}, code={0, 1})
    return element("h3", text("Sparse tables")) + paragraph(note) + table


def _pipeline(page: Page) -> str:
    lead = (
        "The tasks of each node, from left to right. A task has its letters and the number"
        " of its microbatch. In the declared schedule, FLOPs stand for time."
    )
    parts = [
        paragraph(lead),
        chart_with_title("Declared schedule", pipeline_chart(page.schedule)),
    ]
    if page.measured_schedule and page.step_time is not None:
        seconds = page.step_time.seconds
        drawn = pipeline_chart(page.measured_schedule, seconds=seconds)
        parts.append(chart_with_title("Measured schedule of the median step", drawn))
    return "".join(parts)


def _placement(page: Page, placement: Placement) -> str:
    lead = (
        f"Where each part of {placement.phase} runs. A column is a device, or several equal"
        " devices. A box is a part of the program, and time runs down. An arrow is a"
        f" message to another node, with the bytes that all nodes send in {placement.phase}."
    )
    return "".join(
        [
            paragraph(lead),
            paragraph(placement.mode) if placement.mode else "",
            paragraph(page.source) if page.source else "",
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
            paragraph(f"{placement.left_out}.") if placement.left_out else "",
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
            "≤ marks an upper bound, because a batch may contain a key several times"
        )
    if any(arrow.between_devices for arrow in placement.arrows):
        notes.append("a dashed line is a copy between devices of a node")
    if any(_is_loop(placement, arrow) for arrow in placement.arrows):
        notes.append("a loop next to a column is a message between its equal nodes")
    return "".join(
        [
            element(
                "div",
                element(
                    "label",
                    text("Color by"),
                    element("select", *options, id="color", autocomplete="off"),
                    *_scales(placement),
                ),
                element(
                    "label",
                    element("input", type="checkbox", id="fit", autocomplete="off"),
                    text("Fit to the width"),
                ),
                element("ul", *legend, class_="legend"),
                class_="row",
            ),
            paragraph(f"{'; '.join(notes)}.".capitalize()) if notes else "",
        ]
    )


def _scales(placement: Placement) -> Iterator[str]:
    """Yield the scale of each figure that boxes are colored by."""
    boxes = placement.boxes
    seconds = max((box.seconds or 0.0 for box in boxes), default=0.0)
    most = {
        "flops": format_flops(max((box.flops for box in boxes), default=0)),
        "bytes": format_size(max((box.nbytes for box in boxes), default=0)),
        "time": format_ms(seconds),
    }
    for kind, largest in most.items():
        ramp = element("i", class_="ramp")
        yield element(
            "span", text("0"), ramp, text(largest), class_=f"heat heat-{kind}"
        )


def _threads_legend(step_time: StepTime) -> str:
    """Return the legend of all charts about the time of a step."""
    names = [piece.category for piece in step_time.chain]
    names += [each.category for row in step_time.rows for each in row.slices]
    names += [name for shares in step_time.shares.values() for name in shares]
    entries = [
        element("li", element("i"), text(name), class_=class_name("cat", name))
        for name in categories_in(names)
    ]
    return element("ul", *entries, class_="legend swatches")


def _is_loop(placement: Placement, arrow: Arrow) -> bool:
    ends = placement.boxes[arrow.source], placement.boxes[arrow.target]
    return ends[0].column == ends[1].column and not arrow.between_devices


def _positions(details: Details) -> dict[str, tuple[int, int]]:
    """Return the first box of each layer, and the number of the layer in the box."""
    found: dict[str, tuple[int, int]] = {}
    for box, layers in enumerate(details.boxes):
        for number, layer in enumerate(layers):
            found.setdefault(layer.name, (box, number))
    return found


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


def _layers(page: Page) -> str:
    layers = page.layers
    buttons: dict[int, dict[str, object]] = {}
    if page.placement is not None and page.details is not None:
        positions = _positions(page.details)
        for i, layer in enumerate(layers[:MOST_LAYERS]):
            if layer.name in positions:
                box, number = positions[layer.name]
                buttons[i] = {"data_box": box, "data_layer": number}
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
        buttons=buttons,
    )
    if more:
        table += paragraph(
            f"{plural(more, 'more layer')} not listed; the search finds all layers."
        )
    if len(layers) <= _OPEN_LAYERS:
        return table
    summary = element("summary", text(f"All {plural(len(layers), 'layer')}"))
    return element("details", summary, table)
