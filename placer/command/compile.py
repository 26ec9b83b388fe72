"""The command `placer compile`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from placer.command.console import echo
from placer.command.options import compile_options, spec_argument

if TYPE_CHECKING:
    from placer.compiler.graph.graph import Graph


def check_pass_names(
    context: click.Context, parameter: click.Parameter, names: Sequence[str]
) -> tuple[str, ...]:
    """Check the names of passes. The compiler is imported only if names are given."""
    if names:
        from placer.compiler.passes import PASSES
        from placer.errors import did_you_mean

        for name in names:
            if name not in PASSES:
                hint = did_you_mean(name, PASSES)
                raise click.BadParameter(
                    f"unknown pass '{name}'; {hint}", context, parameter
                )
    return tuple(names)


@click.command(
    "compile",
    short_help="Compile a spec into a build folder with one program per node.",
)
@spec_argument
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The build folder: new, empty, or an earlier build to overwrite.",
)
@compile_options
@click.option(
    "--print-after",
    multiple=True,
    metavar="PASS",
    callback=check_pass_names,
    help="Print the graph after this pass: differentiate, place, sparse_tables, "
    "partial_sums, local_updates, slice, exchange, train, evaluate, predict, microbatch, "
    "layout, recompute, buckets, transfer, memcpy, segment or send_and_recv. Can be "
    "repeated.",
)
def compile_command(
    spec: Path, out: Path, print_after: tuple[str, ...], **options: Any
) -> None:
    """Compile SPEC into a build folder with one readable JAX program per node.

    The folder contains everything that `placer launch` and `placer run` need.
    """
    from placer.compiler.driver import compile_in_memory
    from placer.compiler.graph.text import print_graph
    from placer.compiler.passes import STEP_PASSES
    from placer.errors import BuildError, PlacerError
    from placer.plan.write import write_build
    from placer.report.optax_notes import optax_lines
    from placer.report.outcome import plan_line
    from placer.report.repeated_work import repeated_line
    from placer.report.untrained_arrays import untrained_lines
    from placer.system.files.owners import check_folder

    final: list[
        Graph
    ] = []  # the graph of a training step, then the graph of an evaluation
    passes = set()

    def watch(name: str, graph: Graph) -> None:
        passes.add(name)
        if name == STEP_PASSES[-1].name:
            final.append(graph)
        if name in print_after:
            echo(print_graph(graph))

    compiled = compile_in_memory(spec, after_pass=watch, **options)
    for name in print_after:
        if name not in passes:
            raise PlacerError(
                f"--print-after {name} has no effect: the model does not need this pass",
                hint=f"it needs: {', '.join(sorted(passes))}",
            )
    write_build(out, compiled.files_in(out))
    plan = compiled.plan
    # With --print-after, stdout has only graphs, so that they can be parsed.
    echo(f"{plan.name}: {plan_line(plan)}", err=bool(print_after))
    notes = (*untrained_lines(plan), *optax_lines(plan))
    for note in (*notes, *repeated_line(plan, final[0])):
        echo(f"  {note}", err=bool(print_after))
    launch = f"placer launch {quote(str(out))}"
    echo(f"  written to {out}; run it with: {launch}", err=bool(print_after))
    try:
        check_folder(out)
    except BuildError as error:
        echo(f"warning: placer launch will refuse this build: {error}", err=True)
