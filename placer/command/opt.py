"""The command `placer opt`."""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.compile import check_pass_names
from placer.command.console import echo
from placer.command.paths import ExistingPath


@click.command("opt", short_help="Run compiler passes on the text of a graph.")
@click.argument(
    "graph",
    type=ExistingPath(dir_okay=False, allow_dash=True),
)
@click.option(
    "--pass",
    "names",
    multiple=True,
    metavar="PASS",
    callback=check_pass_names,
    help="Run this pass. `placer compile --help` lists all passes. Can be repeated.",
)
@click.option(
    "--why", is_flag=True, help="Print the reasons for the places of the ops."
)
def opt_command(graph: Path, names: tuple[str, ...], why: bool) -> None:
    """Run passes on the text of graphs, verify the results and print them.

    GRAPH is a file with graphs that `placer compile --print-after` printed, or `-` for
    standard input. Without --pass, the graphs are only verified and printed.

    \b
      placer compile SPEC --out build/ --print-after place > graph.txt
      placer opt graph.txt --pass partial_sums --pass slice
    """
    if why and not names:
        raise click.UsageError(
            "--why needs --pass: the text of a graph contains no reasons"
        )
    from placer.compiler.graph.text import parse_graphs, print_graph
    from placer.compiler.passes import PASSES
    from placer.compiler.passes.verify import GraphForm, verify

    with click.open_file(str(graph), encoding="utf-8") as file:
        text = file.read()
    for each in parse_graphs(text, str(graph)):
        result = each
        verify(result, GraphForm.WRITTEN)
        for name in names:
            verify(result, PASSES[name].needs)
            result = PASSES[name].run(result)
            verify(result, PASSES[name].gives)
        echo(print_graph(result, reasons=why))
