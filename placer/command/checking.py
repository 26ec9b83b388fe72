"""`placer check` and `placer schema`"""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.options import (
    debug_option,
    nodes_option,
    single_process_option,
    spec_argument,
)


@click.command("check", short_help="Check a spec: every mistake, each where it stands.")
@spec_argument
@nodes_option
@single_process_option
@debug_option
def check_command(
    spec: Path, nodes: dict[str, int] | None, single_process: bool
) -> None:
    """Check SPEC as `compile` does, and keep nothing."""
    from placer.command.opened import opened
    from placer.report.outcome import plan_line

    with opened(spec, nodes=nodes, single_process=single_process) as found:
        click.echo(f"{spec}: ok: {plan_line(found.plan)}")


@click.command("schema", short_help="Print the JSON Schema of specs, for editors.")
@debug_option
def schema_command() -> None:
    """Print the JSON Schema of specs, with which an editor completes and checks them."""
    import json

    from placer.spec import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
