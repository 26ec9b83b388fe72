"""`placer compile`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from placer.command.console import say
from placer.command.options import (
    debug_option,
    no_code_option,
    nodes_option,
    single_process_option,
    spec_argument,
)

if TYPE_CHECKING:
    from placer.graph.graph import Graph


def _pass_names(
    context: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> tuple[str, ...]:
    """The given names of passes, checked; the compiler is imported only for that."""
    if given:
        from placer.errors import did_you_mean
        from placer.passes import NAMES

        for name in given:
            if name not in NAMES:
                hint = did_you_mean(name, NAMES)
                raise click.BadParameter(
                    f"no pass is named '{name}'; {hint}", context, parameter
                )
    return tuple(given)


@click.command(
    "compile", short_help="Compile a spec into a folder: a program for each node."
)
@spec_argument
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The build folder, new, empty or of an earlier compilation.",
)
@nodes_option
@single_process_option
@no_code_option
@click.option(
    "--print-after",
    multiple=True,
    metavar="PASS",
    callback=_pass_names,
    help="Print the graph after this pass: differentiate, place, partial_sums, slice, "
    "train, evaluate, microbatch, layout, recompute, transfer, memcpy or segment. May "
    "be given more than once.",
)
@debug_option
def compile_command(
    spec: Path,
    out: Path,
    nodes: dict[str, int] | None,
    single_process: bool,
    no_code: bool,
    print_after: tuple[str, ...],
) -> None:
    """Compile SPEC into a build folder: one readable JAX program for each node.

    The folder is all that `placer launch` and `placer run` need.
    """
    from placer.compiler import compile
    from placer.errors import BuildError
    from placer.files.owners import check_folder
    from placer.graph.text import print_graph
    from placer.report.outcome import plan_line
    from placer.report.repeated_work import repeated_line

    final: list[Graph] = []  # of a step, then of an evaluation

    def watch(name: str, graph: Graph) -> None:
        if name == "segment":
            final.append(graph)
        if name in print_after:
            say(print_graph(graph))

    plan = compile(
        spec,
        out,
        nodes=nodes,
        single_process=single_process,
        code=not no_code,
        after_pass=watch,
    )
    # A graph that was asked for is all there is on stdout, so that it can be read back.
    say(f"{plan.name}: {plan_line(plan)}", err=bool(print_after))
    again = repeated_line(plan, final[0])
    if again is not None:
        say(f"  {again}", err=bool(print_after))
    then = f"placer launch {quote(str(out))}"
    say(f"  in {out}; run it with: {then}", err=bool(print_after))
    try:
        check_folder(out)
    except BuildError as error:
        say(f"warning: placer launch will refuse this build: {error}", err=True)
