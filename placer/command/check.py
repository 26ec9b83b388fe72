"""`placer check` and `placer schema`"""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import say
from placer.command.options import (
    debug_option,
    no_code_option,
    nodes_option,
    single_process_option,
    spec_argument,
)


@click.command("check", short_help="Check a spec: every mistake, each where it stands.")
@spec_argument
@nodes_option
@single_process_option
@no_code_option
@debug_option
def check_command(
    spec: Path, nodes: dict[str, int] | None, single_process: bool, no_code: bool
) -> None:
    """Check SPEC as `compile` does, and keep nothing.

    Functions of the spec's `call` are traced, for which their files are run.
    """
    from placer.command.build_or_spec import opened
    from placer.report.outcome import plan_line

    found = opened(spec, nodes=nodes, single_process=single_process, code=not no_code)
    say(f"{spec}: ok: {plan_line(found.plan)}")


@click.command("schema", short_help="Print the JSON Schema of specs, for editors.")
@debug_option
def schema_command() -> None:
    """Print the JSON Schema of specs, with which an editor completes and checks them."""
    import json

    from placer.spec import json_schema

    say(json.dumps(json_schema(), indent=2, ensure_ascii=False))
