"""The text picture of a placement, and the canvas that it is drawn on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from placer.compiler.build_or_spec import load_build
from placer.report.page.facts import Arrow, Box, Column, Group, Line, Placement
from placer.report.page.placement import placement_of
from placer.report.text_canvas import Canvas, fit, to_ascii
from placer.report.text_picture import draw_placement
from placer.system.resources import find_file

TWO = Placement(
    "a training step",
    groups=(Group(("worker:0", "worker:1"), "worker:0-1"), Group(("ps:0",), "ps:0")),
    columns=(Column(0, "cpu"), Column(1, "cpu", left_out=3)),
    boxes=(
        Box(
            0, 1, 0, "store", "stores parameters", (Line("w", "float32[8]"),), stored=32
        ),
        Box(1, 0, 1, "forward and backward", "forward and backward", flops=2_500_000),
        Box(
            2, 1, 2, "update", "updates parameters", (Line("w", "adam"),), seconds=0.01
        ),
    ),
    arrows=(
        Arrow(0, 1, 64, (1,), ("w",)),
        Arrow(1, 2, 65536, (2,), ("w.grad",), more=4, estimated=True),
    ),
    left_out="2 of 4 servers are not drawn",
)


def test_a_picture_has_columns_boxes_and_messages() -> None:
    assert list(draw_placement(TWO, 62)) == [
        "Placement of a training step",
        "",
        "worker:0-1 (2 nodes)            ps:0",
        "cpu                             cpu (3 boxes not drawn)",
        "━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━",
        "               │                ┌─ stores parameters ────────┐",
        "               │                │ w                      [8] │",
        "               │                └─ 32 bytes stored ──────────┘",
        "               ◀───────── 64 bytes w ──────────┤",
        "┌─ forward and backward ─────┐                 │",
        "└─ 2.5 MFLOPs ───────────────┘                 │",
        "               ├───── ≤ 65.5 kB w.grad +4 ─────▶",
        "                                ┌─ updates parameters ───────┐",
        "                                │ w                     adam │",
        "                                └─ 10.0 ms ──────────────────┘",
        "2 of 4 servers are not drawn",
        "─▶ message, with the bytes that all nodes send in a step",
        "└─ figures of a box: one node, in a step",
        "≤  upper bound, as if all keys of a batch were different",
    ]


def test_columns_that_do_not_fit_are_listed() -> None:
    assert list(draw_placement(TWO, 36)) == [
        "Placement of a training step",
        "",
        "worker:0-1 (2 nodes), cpu",
        "  forward and backward: 2.5 MFLOPs",
        "    → ≤ 65.5 kB to ps:0 cpu, update…",
        "",
        "ps:0, cpu (3 boxes not drawn)",
        "  stores parameters: 32 bytes stored",
        "      w [8]",
        "    → 64 bytes to worker:0-1 cpu, f…",
        "  updates parameters: 10.0 ms",
        "      w adam",
        "",
        "2 of 4 servers are not drawn",
        "→ message, with the bytes that all nodes send in a step",
        "figures of a box: one node, in a step",
        "≤  upper bound, as if all keys of a batch were different",
    ]


def test_an_arrow_inside_a_column_and_a_copy_have_their_own_signs() -> None:
    group = Group(("worker:0", "worker:1"), "worker:0-1")
    placement = Placement(
        "a training step",
        groups=(group,),
        columns=(Column(0, "cpu"), Column(0, "gpu:0-7", 8)),
        boxes=(
            Box(0, 0, 0, "read", "reads rows"),
            Box(1, 1, 1, "forward", "forward"),
            Box(2, 1, 2, "update", "updates parameters"),
        ),
        arrows=(
            Arrow(0, 1, 8, values=("image",), between_devices=True),
            Arrow(1, 2, 16, values=("w.grad",)),
            Arrow(2, 1, 16, values=("w",)),
        ),
    )
    lines = list(draw_placement(placement, 50))
    assert lines[2:5] == [
        "worker:0-1 (2 nodes)",
        "cpu" + " " * 23 + "gpu:0-7",
        "━" * 50,
    ]
    assert "            ├╌╌╌╌╌ 8 bytes image ╌╌╌╌╌▶" in lines
    assert " " * 26 + "↻ 16 bytes w.grad" in lines
    assert " " * 26 + "↻ 16 bytes w (next step)" in lines
    assert lines[-2:] == [
        "╌▶ copy between devices of a node",
        "↻  message between the nodes of a column",
    ]


@pytest.mark.parametrize(
    ("width", "label"),
    [
        (80, "65.5 kB norm1.scale, norm1.bias +3"),
        (56, "65.5 kB norm1.scale +4"),
        (46, "65.5 kB norm1.s… +4"),
        (38, "65.5 kB"),
    ],
)
def test_a_message_names_as_many_values_as_fit(width: int, label: str) -> None:
    arrow = Arrow(0, 1, 65536, values=("norm1.scale", "norm1.bias"), more=3)
    placement = msgspec.structs.replace(TWO, arrows=(arrow,))
    (line,) = (line for line in draw_placement(placement, width) if "◀" in line)
    assert label == line.strip(" ◀─┤│")


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize(
    "spec",
    ["digits", "wide_deep_sparse", "transformer_pipeline", "digits_all_reduce", "lamb"],
)
def test_pictures_fit_and_name_every_box_and_message(spec: str, width: int) -> None:
    placement = placement_of(load_build(Path(find_file(f"specs/{spec}.yaml"))))
    lines = list(draw_placement(placement, width))
    assert all(cell_len(line) <= max(width, 60) for line in lines)
    text = "\n".join(lines)
    starts = Counter(box.title[:12] for box in placement.boxes)  # narrow boxes cut it
    for start, number in starts.items():
        assert text.count(start) >= number
    heads = text.count("▶") + text.count("◀") + text.count("    → ")
    legend = sum(line.startswith(("─▶", "╌▶")) for line in lines)
    assert heads - legend == len(placement.arrows)


def test_names_of_a_spec_cannot_control_the_terminal() -> None:
    name = "a\x1b[2J\nb"
    box = Box(0, 0, 0, "read", name, (Line(name, name), Line("宽", "字" * 40)))
    columns, groups = (Column(0, "cpu"),), (Group((name,), name),)
    placement = Placement("a training step", groups, columns, (box,), ())
    for width in (10, 30):
        text = "\n".join(draw_placement(placement, width))
        assert "\x1b" not in text
        assert "a\ufffd[2J b" in text


def test_wide_characters_take_two_cells() -> None:
    canvas = Canvas(5, 1)
    canvas.put(0, 0, "宽x")
    canvas.put(0, 4, "e\u0301")
    (line,) = canvas.lines()
    assert line == "宽x e\u0301"
    assert (fit("宽宽宽", 5), fit("  a   b ", 5), fit("abc", 0)) == ("宽宽…", "a b", "")


def test_a_drawing_without_unicode() -> None:
    lines = [to_ascii(line) for line in draw_placement(TWO, 62)]
    assert "               <--------- 64 bytes w ----------+" in lines
    assert all(line.isascii() for line in lines)
