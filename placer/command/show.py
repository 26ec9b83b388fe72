"""`placer show`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from placer.command.console import say
from placer.command.options import build_or_spec_argument, debug_option, no_code_option

if TYPE_CHECKING:
    from placer.command.build_or_spec import Opened


@click.command("show", short_help="Show the placed graph, the tables, or a program.")
@build_or_spec_argument
@click.option(
    "--tables", is_flag=True, help="Which node holds which blocks, and how evenly."
)
@click.option(
    "--schedule", is_flag=True, help="When each node runs which microbatch of a step."
)
@click.option("--node", metavar="NAME:ID", help="The program of this node.")
@no_code_option
@debug_option
def show_command(
    build: Path, tables: bool, schedule: bool, node: str | None, no_code: bool
) -> None:
    """Show the placed graph of a build, or of a spec, coloured by place.

    Off a terminal it is the text of the graph as it stands in the build.
    """
    if tables + schedule + (node is not None) > 1:
        raise click.UsageError(
            "--tables, --schedule and --node show different things; give one"
        )
    from placer.command.build_or_spec import opened

    found = opened(build, code=not no_code)
    if node is not None:
        _program(found, node)
    elif tables:
        _tables(found)
    elif schedule:
        _schedule(found)
    else:
        _graphs(found)


def _graphs(found: Opened) -> None:
    from placer.report.console import console
    from placer.report.placed_graph import coloured, legend
    from placer.report.repeated_work import repeated_line

    graphs = found.graphs
    screen = console(sys.stdout)
    for line in coloured(graphs):
        screen.print(line, soft_wrap=True)
    if screen.is_terminal:
        screen.print(legend(graphs))
    again = repeated_line(found.plan, graphs[0])
    if again is not None:
        say(again, err=True)  # what is printed can be read back as a graph


def _tables(found: Opened) -> None:
    from placer.report.console import console
    from placer.report.server_tables import table_views

    screen = console(sys.stdout)
    for view in table_views(found.plan):
        screen.print(view, soft_wrap=not screen.is_terminal)


def _schedule(found: Opened) -> None:
    from placer.analysis.schedule import make_schedule
    from placer.analysis.schedule_text import print_schedule
    from placer.report.console import console
    from placer.report.pipeline import drawn

    if found.plan.microbatches == 1:
        say("a step is one part: train.microbatches of the spec is 1")
        return
    schedule = make_schedule(found.graphs[0], found.plan.schedule)
    screen = console(sys.stdout)
    if not screen.is_terminal:
        say(print_schedule(schedule), nl=False)
        return
    for line in drawn(schedule, screen.width):
        screen.print(line, soft_wrap=True)


def _program(found: Opened, node: str) -> None:
    from placer.report.console import console

    text = found.text(found.plan.node(node).program)
    screen = console(sys.stdout)
    if screen.is_terminal:
        from rich.syntax import Syntax

        screen.print(Syntax(text, "python", background_color="default"))
    else:
        say(text, nl=False)
