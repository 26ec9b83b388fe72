"""The command `placer explain`."""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import echo
from placer.command.options import build_spec_or_run_argument, code_option, set_option
from placer.command.paths import build_in

_REST = (
    "other ops run as written in the spec, and gradient ops at the place of their forward"
    " op"
)
_NAMES = "names to explain, besides the ops that `placer show --graph` lists:"


@click.command(
    "explain", short_help="Explain the place of an op or parameter, and its transfers."
)
@build_spec_or_run_argument
@click.argument("name", required=False)
@set_option
@code_option
def explain_command(
    build: Path, name: str | None, overrides: tuple[str, ...], code: bool
) -> None:
    """Explain the place of NAME and list its transfers between nodes.

    NAME is a layer, an op, a value, a parameter, a block of a parameter or a table. Without
    NAME, list the choices of the compiler and the ops that it inserted, grouped by reason,
    and the names of all layers, parameters and tables.
    """
    from placer.compiler.build_or_spec import load_build
    from placer.report.choices import list_choices
    from placer.report.explain import BuildInfo, explain, list_names_of
    from placer.report.optax_notes import optax_lines
    from placer.report.repeated_work import repeated_line
    from placer.report.untrained_arrays import untrained_lines

    loaded = load_build(build_in(build), overrides=overrides, code=code)
    info = BuildInfo(loaded.plan, loaded.graphs, loaded.op_positions)
    if name is None:
        plan, graph = info.plan, info.graphs[0]
        notes = (*untrained_lines(plan, None), *optax_lines(plan, None))
        lines = [*list_choices(plan), *notes, *repeated_line(plan, graph), _REST]
        lines += [_NAMES, *list_names_of(info)]
    else:
        lines = list(explain(info, name))
    for line in lines:
        echo(line)
