"""The graph as `placer show --graph` shows it in a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import click
import pytest
from rich.console import Console
from rich.text import Text

from placer.command.console import page
from placer.compiler.build_or_spec import load_build
from placer.compiler.graph.text import print_op
from placer.report.placed_graph import show_graph
from placer.system.resources import find_file


def view(spec: str, width: int) -> list[str]:
    graph = load_build(Path(find_file(f"specs/{spec}.yaml"))).graphs[0]
    return [line.plain for line in show_graph(graph, width)]


def test_an_op_has_a_line_of_results_and_a_line_of_operands() -> None:
    lines = view("digits", 120)
    at = lines.index("  %h1: float32[batch, 128] S, %h1.res: (bool[batch, 128]) S")
    assert lines[at + 1 : at + 4] == [
        "    = fc(%image, %h1.w.copy, %h1.b.copy) {activation = relu, segment = 1}"
        " @/node:worker/cpu",
        "  %logits: float32[batch, 10] S, %logits.res: () S",
        "    = fc(%h1, %logits.w.copy, %logits.b.copy) {segment = 1} @/node:worker/cpu",
    ]


def test_long_lines_are_wrapped_between_words() -> None:
    build = load_build(Path(find_file("specs/transformer_pipeline.yaml")))
    graph = build.graphs[0]
    lines = [line.plain for line in show_graph(graph, 80)]
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for op in graph.ops:
        assert print_op(op) in text


def test_the_legend_explains_the_letters_that_occur() -> None:
    lines = view("digits", 80)
    assert lines[: lines.index("")] == [
        "letters after a type: the layout of the value on the nodes of its place",
        "  R  replicated: each node has the whole value",
        "  S  split: each node has its rows of the batch",
        "  P  partial: the value is the sum over all nodes",
        "places: /node:ps/cpu  /node:ps:0/cpu  /node:ps:1/cpu  /node:worker/cpu",
    ]
    text = "\n".join(view("transformer_pipeline", 80))
    assert "  /P  partial over microbatches: the value is the sum over" in text
    assert "  F  in flat ranges" in "\n".join(view("digits_all_reduce", 80))


def test_a_pager_receives_colored_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def keep(lines: Iterable[str]) -> None:
        shown.extend(lines)

    monkeypatch.setattr(click, "echo_via_pager", keep)
    monkeypatch.setenv("LESS", "R")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    page([Text("a", "cyan"), Text("b" * 200)], screen)
    assert shown == ["\x1b[36ma\x1b[0m\n", "b" * 200 + "\n"]
