"""The command `placer show`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from placer.command.console import echo, echo_views
from placer.command.options import build_or_spec_argument, code_option, set_option

if TYPE_CHECKING:
    from rich.console import Console

    from placer.compiler.build_or_spec import LoadedBuild
    from placer.plan.plan import NodePlan


@click.command(
    "show", short_help="Show the placed graph, the tables, the schedule or a program."
)
@build_or_spec_argument
@click.option(
    "--summary", is_flag=True, help="Show only the summary, without the graph."
)
@click.option(
    "--tables",
    is_flag=True,
    help="Show which blocks of parameters each node stores, and how balanced they are.",
)
@click.option(
    "--schedule",
    is_flag=True,
    help="Show when each node runs each microbatch of a step.",
)
@click.option(
    "--node",
    metavar="NAME:ID",
    help="Show the program of this node. For a process with several threads, list the threads.",
)
@set_option
@code_option
def show_command(
    build: Path,
    summary: bool,
    tables: bool,
    schedule: bool,
    node: str | None,
    overrides: tuple[str, ...],
    code: bool,
) -> None:
    """Show a summary of a build or a spec, and the placed graph, colored by place.

    The summary lists the layers with their output shapes, parameters and places. It also
    lists the FLOPs and the bytes sent in a step, and the memory of each node. If the
    output is not a terminal, the summary is a comment before the text of the build's
    graph.txt.
    """
    if summary + tables + schedule + (node is not None) > 1:
        raise click.UsageError(
            "--summary, --tables, --schedule and --node cannot be combined; use one of"
            " them"
        )
    from placer.compiler.build_or_spec import load_build
    from placer.report.console import console

    loaded = load_build(build, overrides=overrides, code=code)
    screen = console(sys.stdout)
    if node is not None:
        _program(loaded, node, screen)
    elif summary:
        _summary(loaded, screen)
    elif tables:
        _tables(loaded, screen)
    elif schedule:
        _schedule(loaded, screen)
    else:
        _graphs(loaded, screen)


def _summary(build: LoadedBuild, screen: Console, comment: str = "") -> None:
    from placer.report.summary import summarize

    echo_views(summarize(build.plan, build.graphs[0]), screen, comment=comment)


def _graphs(build: LoadedBuild, screen: Console) -> None:
    from placer.report.placed_graph import color_graphs, legend
    from placer.report.repeated_work import repeated_line

    graphs = build.graphs
    _summary(build, screen, comment="# ")
    if screen.is_terminal:
        screen.print()
    for line in color_graphs(graphs):
        screen.print(line, soft_wrap=True)
    if screen.is_terminal:
        screen.print(legend(graphs))
    for note in repeated_line(build.plan, graphs[0]):
        echo(
            note, err=True
        )  # stdout can be parsed as graphs, so the note goes to stderr


def _tables(build: LoadedBuild, screen: Console) -> None:
    from placer.report.server_tables import table_views

    for view in table_views(build.plan):
        screen.print(view, soft_wrap=not screen.is_terminal)


def _schedule(build: LoadedBuild, screen: Console) -> None:
    from placer.compiler.schedule.schedule import make_schedule
    from placer.compiler.schedule.schedule_text import print_schedule
    from placer.report.pipeline import draw_schedule

    if build.plan.settings.train.microbatches == 1:
        echo("no schedule to show: train.microbatches (or gradient_accumulation) is 1")
        return
    schedule = make_schedule(build.graphs[0], build.plan.settings.train.schedule)
    if not screen.is_terminal:
        echo(print_schedule(schedule), nl=False)
        return
    for line in draw_schedule(schedule, screen.width):
        screen.print(line, soft_wrap=True)


def _program(build: LoadedBuild, name: str, screen: Console) -> None:
    nodes = build.plan.processes.get(name, ())
    if threads := [node for node in nodes if node.name != name]:
        _threads(name, threads)
        return
    text = build.read_text(build.plan.node(name).program)
    if screen.is_terminal:
        from rich.syntax import Syntax

        screen.print(Syntax(text, "python", background_color="default"))
    else:
        echo(text, nl=False)


def _threads(process: str, threads: Sequence[NodePlan]) -> None:
    from placer.place.ids import format_nodes
    from placer.report.numbers import plural

    users: dict[str, list[str]] = {}
    for node in threads:
        users.setdefault(node.program, []).append(node.name)
    first = threads[0].name
    count = plural(len(threads), "thread")
    echo(f"{process} has {count}; show the program of one with --node {first}:")
    for program, names in users.items():
        echo(f"  {format_nodes(names)}  {program}")
