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

    NAME is an op, a value, a parameter or a block of a parameter. Without NAME, list the
    choices of the compiler and the ops that it inserted, grouped by reason.
    """
    from placer.compiler.build_or_spec import load_build
    from placer.report.choices import list_choices
    from placer.report.explain import BuildInfo, explain
    from placer.report.optax_notes import optax_lines
    from placer.report.repeated_work import repeated_line
    from placer.report.untrained_arrays import untrained_lines

    loaded = load_build(build_in(build), overrides=overrides, code=code)
    if name is None:
        plan, graph = loaded.plan, loaded.graphs[0]
        notes = (*untrained_lines(plan, None), *optax_lines(plan, None))
        lines = [*list_choices(plan), *notes, *repeated_line(plan, graph), _REST]
    else:
        info = BuildInfo(loaded.plan, loaded.graphs, loaded.op_positions)
        lines = list(explain(info, name))
    for line in lines:
        echo(line)
