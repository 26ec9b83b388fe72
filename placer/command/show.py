"""The command `placer show`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from placer.command.console import echo, echo_views, page
from placer.command.options import build_spec_or_run_argument, code_option, set_option
from placer.command.paths import build_in
from placer.errors import BuildError

if TYPE_CHECKING:
    from rich.console import Console

    from placer.compiler.build_or_spec import LoadedBuild
    from placer.compiler.graph.graph import Graph
    from placer.plan.plan import NodePlan


STEP, EVALUATION, PREDICTION, ALL = "step", "evaluation", "prediction", "all"
_SUFFIXES = {STEP: "", EVALUATION: ".eval", PREDICTION: ".predict"}
"""The end of the name of a graph after the model's name, by phase."""


@click.command(
    "show", short_help="Show the placement, the graph, the tables or a program."
)
@build_spec_or_run_argument
@click.option(
    "--summary", is_flag=True, help="Show only the summary, without the placement."
)
@click.option(
    "--graph",
    is_flag=True,
    help="Show the ops of the placed graph. Without a terminal, print graph.txt.",
)
@click.option(
    "--phase",
    type=click.Choice([STEP, EVALUATION, PREDICTION, ALL]),
    help="With --graph: the graph to show. Default: step in a terminal, all otherwise.",
)
@click.option(
    "--tables",
    is_flag=True,
    help="Show which blocks of parameters each node stores, and why the balance is uneven. "
    "For a run, also show its sparse tables: rows, memory, and counts of keys.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With --tables and a run: print the counts of its sparse tables as one JSON object.",
)
@click.option(
    "--schedule",
    is_flag=True,
    help="Draw when each node runs each microbatch of a step.",
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
    graph: bool,
    phase: str | None,
    tables: bool,
    as_json: bool,
    schedule: bool,
    node: str | None,
    overrides: tuple[str, ...],
    code: bool,
) -> None:
    """Show a summary of a build or a spec, and a picture of the placement.

    The summary lists the layers with their output shapes and parameters. For each layer,
    it shows the nodes that store the parameters, the bytes that nodes send in a step, and
    the share of the FLOPs of the forward and backward pass. The memory of each process
    follows.

    The picture has a column for each group of equal devices. A box is a part of the node
    programs, an arrow is a message, and time runs down.
    """
    if summary + graph + tables + schedule + (node is not None) > 1:
        raise click.UsageError(
            "--summary, --graph, --tables, --schedule and --node cannot be combined; use"
            " one of them"
        )
    if phase is not None and not graph:
        raise click.UsageError("--phase needs --graph")
    if as_json and not tables:
        raise click.UsageError("--json needs --tables")
    from placer.report.console import console

    screen = console(sys.stdout)
    if tables and _run_tables(build, screen, as_json=as_json):
        return
    from placer.compiler.build_or_spec import load_build

    loaded = load_build(build_in(build), overrides=overrides, code=code)
    if node is not None:
        _program(loaded, node, screen)
    elif graph:
        _graph(loaded, phase, screen)
    elif tables:
        _tables(loaded, screen)
    elif schedule:
        _schedule(loaded, screen)
    else:
        graphs = loaded.graphs
        _summary(loaded, graphs[0], screen)
        if not summary:
            _picture(loaded, graphs, screen)


def _summary(build: LoadedBuild, step: Graph, screen: Console) -> None:
    from placer.report.summary import summarize

    echo_views(summarize(build.plan, step), screen)


def _picture(build: LoadedBuild, graphs: Sequence[Graph], screen: Console) -> None:
    from placer.report.console import drawing_width
    from placer.report.page.placement import drawn_graph, placement_of
    from placer.report.repeated_work import repeated_line
    from placer.report.text_picture import draw_placement

    echo("")
    placement = placement_of(build, drawn_graph(graphs))
    for line in draw_placement(placement, drawing_width(screen)):
        echo(line)
    for note in repeated_line(build.plan, graphs[0]):
        echo(f"\n{note}")


def _graph(build: LoadedBuild, phase: str | None, screen: Console) -> None:
    from placer.compiler.graph.text import print_graph
    from placer.report.placed_graph import show_graph

    if not screen.is_terminal and phase in (None, ALL):
        echo(build.read_text("graph.txt"), nl=False)
        return
    graphs = _graphs_of(build, phase or STEP)
    if not screen.is_terminal:
        echo("\n".join(map(print_graph, graphs)), nl=False)
        return
    page((line for graph in graphs for line in show_graph(graph, screen.width)), screen)


def _graphs_of(build: LoadedBuild, phase: str) -> list[Graph]:
    """Return the graph of a phase, or all graphs."""
    phases = {f"{build.plan.name}{suffix}": name for name, suffix in _SUFFIXES.items()}
    graphs = {phases[graph.name]: graph for graph in build.graphs}
    if phase == ALL:
        return [*graphs.values()]
    if phase not in graphs:
        raise BuildError(
            f"'{build.plan.name}' has no graph of the phase '{phase}'",
            hint=f"it has {' and '.join(graphs)}",
        )
    return [graphs[phase]]


def _run_tables(path: Path, screen: Console, *, as_json: bool) -> bool:
    """Print the sparse tables of a run, before those of its build; return whether the output
    is complete."""
    from placer.report.run_files import is_run, read_run
    from placer.report.run_tables import run_tables_facts, run_tables_view

    if not is_run(path):
        if as_json:
            raise click.UsageError(
                f"--json needs a run, and '{path}' is not the folder of a run"
            )
        return False
    run = read_run(path)
    if as_json:
        import msgspec

        facts = run_tables_facts(run)
        echo(msgspec.json.format(msgspec.json.encode(facts)).decode())
        return True
    echo_views(run_tables_view(run, screen), screen)
    return False


def _tables(build: LoadedBuild, screen: Console) -> None:
    from placer.report.page.tables import balance_of, is_balanced
    from placer.report.server_tables import table_views

    for view in table_views(build.plan):
        screen.print(view, soft_wrap=not screen.is_terminal)
    if not is_balanced(build.plan):
        # Only the graph has the settings of the slicing.
        reason = balance_of(build.plan, build.graphs[0])
        screen.print(reason, soft_wrap=not screen.is_terminal, markup=False)


def _schedule(build: LoadedBuild, screen: Console) -> None:
    from placer.compiler.schedule.schedule import make_schedule
    from placer.report.console import drawing_width
    from placer.report.pipeline import draw_schedule

    if build.plan.settings.train.microbatches == 1:
        echo("no schedule to show: train.microbatches (or gradient_accumulation) is 1")
        return
    schedule = make_schedule(build.graphs[0], build.plan.settings.train.schedule)
    for line in draw_schedule(schedule, drawing_width(screen)):
        if screen.is_terminal:
            screen.print(line, soft_wrap=True)
        else:
            echo(line.plain)


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
