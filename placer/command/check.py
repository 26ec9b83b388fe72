"""The commands `placer check` and `placer schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from placer.command.console import echo
from placer.command.options import compile_options, spec_argument


@click.command("check", short_help="Check a spec and list all errors in it.")
@spec_argument
@compile_options
def check_command(spec: Path, **options: Any) -> None:
    """Check SPEC and list all errors in it, each with its position.

    This compiles SPEC without writing a build. Functions that the spec calls are
    traced, so their Python files are run; --no-code prevents that.
    """
    from placer.command.build_or_spec import load_build
    from placer.report.outcome import plan_line

    build = load_build(spec, **options)
    echo(f"{spec}: ok: {plan_line(build.plan)}")


@click.command("schema", short_help="Print the JSON Schema of specs, for editors.")
def schema_command() -> None:
    """Print the JSON Schema of specs, for completion and checks in an editor."""
    import json

    from placer.spec import json_schema

    echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
