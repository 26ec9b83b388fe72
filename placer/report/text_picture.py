"""Draws a placement as text: a column for each group of equal devices, time downwards,
and an arrow for each message.

A terminal that is too narrow for all columns gets a list of the boxes instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from placer.report.numbers import format_flops, format_ms, format_size, plural
from placer.report.page.facts import Arrow, Box, Column, Group, Line, Placement
from placer.report.text_canvas import Canvas, fit

_MIN_WIDTH = 18
_MAX_WIDTH = 40
_GAP = 2
_MAX_LINES = 4
"""The largest number of lines in a box, between its borders."""
_MIN_NAME = 6
"""The smallest part of a name of a value that is shown."""
_MAX_ROWS = 60
"""The largest number of rows of boxes in a picture."""
_MAX_LISTED = 20
"""The largest number of boxes in the list of a column."""


def draw_placement(placement: Placement, width: int) -> Iterator[str]:
    """Draw a placement in at most `width` cells a line.

    Args:
        placement: the boxes of each device, and the messages between them.
        width: the number of cells in a line, such as 80.
    """
    yield f"Placement of {placement.phase}"
    yield ""
    count = len(placement.columns)
    cell = (width + _GAP) // count - _GAP if count else 0
    if cell >= _MIN_WIDTH:
        yield from _Picture(placement, min(cell, _MAX_WIDTH)).lines()
    else:
        for number in range(count):
            yield from (_fit_indented(line, width) for line in _list(placement, number))
            yield ""
    if placement.left_out:
        yield placement.left_out
    yield from _legend(placement, listed=cell < _MIN_WIDTH)


def _fit_indented(line: str, width: int) -> str:
    """Cut a line to `width` cells, and keep its indentation."""
    text = line.lstrip(" ")
    indent = len(line) - len(text)
    return " " * indent + fit(text, width - indent)


class _Picture:
    """The columns of a placement side by side, each `width` cells wide."""

    def __init__(self, placement: Placement, width: int) -> None:
        self._placement = placement
        self._width = width
        self._boxes: dict[int, list[Box]] = {}
        for box in placement.boxes:
            self._boxes.setdefault(box.row, []).append(box)
        rows = sorted(self._boxes)
        self._rows, self._left_out = rows[:_MAX_ROWS], rows[_MAX_ROWS:]
        self._arrows = self._arrows_by_row()
        self._last = self._last_rows()

    def lines(self) -> Iterator[str]:
        yield from self._head()
        for row in self._rows:
            yield from self._band(row)
            for arrow in self._arrows.get(row, ()):
                yield from self._arrow(arrow, row)
        if self._left_out:
            count = sum(len(self._boxes[row]) for row in self._left_out)
            yield f"{plural(count, 'more box', 'more boxes')} not drawn"

    def _left(self, column: int) -> int:
        return column * (self._width + _GAP)

    def _center(self, column: int) -> int:
        return self._left(column) + self._width // 2

    def _canvas(self, height: int) -> Canvas:
        return Canvas(self._left(len(self._placement.columns)) - _GAP, height)

    def _arrows_by_row(self) -> dict[int, list[Arrow]]:
        """Return the arrows to draw below each row of boxes.

        An arrow is directly above its target. If a box of the source's column is in
        between, the arrow is directly below its source.
        """
        boxes = self._placement.boxes
        taken = {(box.column, box.row) for box in boxes}
        by_row: dict[int, list[Arrow]] = {}
        for arrow in self._placement.arrows:
            source, target = boxes[arrow.source], boxes[arrow.target]
            between = range(source.row + 1, target.row)
            row = source.row
            if between and not any((source.column, each) in taken for each in between):
                row = target.row - 1
            by_row.setdefault(row, []).append(arrow)
        for arrows in by_row.values():
            arrows.sort(key=lambda each: (boxes[each.source].column, each.target))
        return by_row

    def _last_rows(self) -> dict[int, int]:
        """Return the row of the last box or arrow of each column."""
        boxes = self._placement.boxes
        last = dict.fromkeys(range(len(self._placement.columns)), -1)
        for box in boxes:
            last[box.column] = max(last[box.column], box.row - 1)
        for row, arrows in self._arrows.items():
            for arrow in arrows:
                for box in (boxes[arrow.source], boxes[arrow.target]):
                    last[box.column] = max(last[box.column], row)
        return last

    def _head(self) -> Iterator[str]:
        canvas = self._canvas(3)
        columns = self._placement.columns
        for number, column in enumerate(columns):
            left = self._left(number)
            is_first = number == 0 or columns[number - 1].group != column.group
            if is_first:
                same = sum(each.group == column.group for each in columns)
                span = same * (self._width + _GAP) - _GAP
                title = _group_title(self._placement.groups[column.group])
                canvas.put(0, left, fit(title, span))
                canvas.put(2, left, "━" * span)
            canvas.put(1, left, fit(_device_title(column), self._width))
        yield from canvas.lines()

    def _band(self, row: int) -> Iterator[str]:
        drawn = [(box, _draw_box(box, self._width)) for box in self._boxes[row]]
        canvas = self._canvas(max(len(lines) for _, lines in drawn))
        for column, last in self._last.items():
            if last >= row:
                for number in range(max(len(lines) for _, lines in drawn)):
                    canvas.put(number, self._center(column), "│")
        for box, lines in drawn:
            for number, line in enumerate(lines):
                canvas.put(number, self._left(box.column), line)
        yield from canvas.lines()

    def _arrow(self, arrow: Arrow, row: int) -> Iterator[str]:
        boxes = self._placement.boxes
        source, target = boxes[arrow.source], boxes[arrow.target]
        canvas = self._canvas(1)
        for column, last in self._last.items():
            if last >= row:
                canvas.put(0, self._center(column), "│")
        note = ""
        if source.id != target.id and target.row <= source.row:
            note = " (next step)"
        start, end = self._center(source.column), self._center(target.column)
        if start == end:
            label = _label(arrow, self._width - 2, note)
            canvas.put(0, self._left(source.column), f"↻ {label}")
        else:
            low, high = min(start, end), max(start, end)
            line = "╌" if arrow.between_devices else "─"
            for at in range(low + 1, high):
                canvas.put(0, at, "┼" if canvas.read(0, at) == "│" else line)
            canvas.put(0, start, "├" if start < end else "┤")
            canvas.put(0, end, "▶" if start < end else "◀")
            text = f" {_label(arrow, high - low - 5, note)} "
            canvas.put(0, low + (high - low + 1 - cell_len(text)) // 2, text)
        yield from canvas.lines()


def _draw_box(box: Box, width: int) -> list[str]:
    """Draw a box: its title and its figures are in the borders."""
    lines = [f"│ {_draw_line(line, width - 4)} │" for line in _shown_lines(box)]
    top = _border("┌", box.title, "┐", width)
    bottom = _border("└", _figures(box), "┘", width)
    return [top, *lines, bottom]


def _border(left: str, text: str, right: str, width: int) -> str:
    shown = fit(text, width - 5)
    middle = f"─ {shown} " if shown else "─"
    return f"{left}{middle}{'─' * (width - 2 - cell_len(middle))}{right}"


def _shown_lines(box: Box) -> Sequence[Line]:
    """Return the first lines of a box, with a last one that counts the others."""
    more = box.more
    if len(box.lines) + bool(more) <= _MAX_LINES:
        shown = box.lines
    else:
        shown = box.lines[: _MAX_LINES - 1]
        more += len(box.lines) - len(shown)
    return [*shown, Line(f"and {more:,} more")] if more else shown


def _draw_line(line: Line, width: int) -> str:
    """Draw a name at the left and its note at the right, in exactly `width` cells."""
    note = fit(_note(line), max(0, width - cell_len(fit(line.name, width)) - 1))
    if cell_len(note) < min(4, cell_len(_note(line))):
        note = ""  # too little of it to read
    name = fit(line.name, width - cell_len(note) - bool(note))
    return name + " " * (width - cell_len(name) - cell_len(note)) + note


def _note(line: Line) -> str:
    """Return the note of a line. A shape without a dtype is of 32-bit floats."""
    return line.note.removeprefix("float32")


def _figures(box: Box) -> str:
    """Return the stored bytes, the FLOPs and the measured time of a box."""
    figures = []
    if box.stored:
        figures.append(f"{format_size(box.stored)} stored")
    if box.flops:
        figures.append(format_flops(box.flops))
    if box.seconds is not None:
        figures.append(format_ms(box.seconds))
    return ", ".join(figures)


def _group_title(group: Group) -> str:
    count = len(group.nodes)
    return f"{group.title} ({count:,} nodes)" if count > 1 else group.title


def _device_title(column: Column) -> str:
    left_out = column.left_out
    more = f" ({plural(left_out, 'box', 'boxes')} not drawn)" if left_out else ""
    return f"{column.device}{more}"


def _label(arrow: Arrow, width: int, note: str = "") -> str:
    """Return the bytes of an arrow, as many of its first values as fit, and the number of
    other values."""
    head = f"{_size(arrow)} ".lstrip()
    for count in range(len(arrow.values), 0, -1):
        label = f"{head}{_values(arrow, count)}{note}"
        if cell_len(label) <= width:
            return label
    tail = _values(arrow, 1).removeprefix(arrow.values[0]) if arrow.values else ""
    room = width - cell_len(f"{head}{tail}{note}")
    if arrow.values and room > _MIN_NAME:
        return f"{head}{fit(arrow.values[0], room)}{tail}{note}"
    return fit(f"{head}{note}", width)


def _size(arrow: Arrow) -> str:
    bound = "≤ " if arrow.estimated else ""
    return f"{bound}{format_size(arrow.nbytes)}" if arrow.nbytes else ""


def _values(arrow: Arrow, count: int) -> str:
    """Return the first values of an arrow, and the number of others."""
    others = arrow.more + len(arrow.values) - count
    more = f" +{others:,}" if others else ""
    return f"{', '.join(arrow.values[:count])}{more}"


def _list(placement: Placement, number: int) -> Iterator[str]:
    """Yield the boxes of a column with the messages that they send, as lines."""
    column = placement.columns[number]
    group = placement.groups[column.group]
    yield f"{_group_title(group)}, {_device_title(column)}"
    boxes = [box for box in placement.boxes if box.column == number]
    sent: dict[int, list[Arrow]] = {}
    for arrow in placement.arrows:
        sent.setdefault(arrow.source, []).append(arrow)
    if not boxes:
        yield "  idle"
    for box in boxes[:_MAX_LISTED]:
        yield "  " + ": ".join(filter(None, (box.title, _figures(box))))
        for line in _shown_lines(box):
            yield f"      {line.name}  {_note(line)}".rstrip()
        arrows = sent.get(box.id, [])
        shown = len(arrows) if len(arrows) <= _MAX_LINES else _MAX_LINES - 1
        for arrow in arrows[:shown]:
            target = placement.boxes[arrow.target]
            text = f"{_size(arrow)} to {_box_place(placement, target)}"
            values = _values(arrow, len(arrow.values))
            yield f"    → {': '.join(filter(None, (text.strip(), values)))}"
        if rest := arrows[shown:]:
            nbytes = format_size(sum(arrow.nbytes for arrow in rest))
            yield f"    → {nbytes} to {len(rest):,} other boxes"
    if len(boxes) > _MAX_LISTED:
        count = len(boxes) - _MAX_LISTED
        yield f"  {plural(count, 'more box', 'more boxes')} not listed"


def _box_place(placement: Placement, box: Box) -> str:
    column = placement.columns[box.column]
    return f"{placement.groups[column.group].title} {column.device}, {box.title}"


def _legend(placement: Placement, *, listed: bool) -> Iterator[str]:
    """Yield what the signs of a picture mean, if the picture has them."""
    arrows, boxes = placement.arrows, placement.boxes
    between = [a for a in arrows if boxes[a.source].column != boxes[a.target].column]
    if any(not arrow.between_devices for arrow in between):
        sign = "→" if listed else "─▶"
        yield f"{sign} message, with the bytes that all nodes send in a step"
    if any(map(_figures, boxes)):
        yield f"{'' if listed else '└─ '}figures of a box: one node, in a step"
    if not listed and any(arrow.between_devices for arrow in between):
        yield "╌▶ copy between devices of a node"
    if not listed and len(between) < len(arrows):
        yield "↻  message between the nodes of a column"
    if any(arrow.estimated for arrow in arrows):
        yield "≤  upper bound, as if all keys of a batch were different"
