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
@click.option(
    "--no-data",
    is_flag=True,
    help="Do not open the data sources.",
)
def check_command(spec: Path, no_data: bool, code: bool, **options: Any) -> None:
    """Check SPEC and list all errors in it, each with its position.

    This compiles SPEC without writing a build, and reads the first rows of its data
    sources. It runs the Python files of functions that the spec calls and of `python:`
    sources, unless --no-code is given.
    """
    from placer.compiler.driver import compile_in_memory
    from placer.launcher.data_check import check_data
    from placer.report.outcome import plan_line

    compiled = compile_in_memory(spec, code=code, **options)
    plan = compiled.plan
    line = f"{spec}: ok: {plan_line(plan)}"
    advice = []
    if not no_data:
        parts = check_data(
            plan,
            compiled.folder,
            compiled.data_spans,
            code=code,
            all_files=True,
        )
        for source, part in parts.items():
            first = "row" if part.rows == 1 else f"{part.rows:,} rows"
            line += f"; checked the first {first} of {source}"
            if part.files > 1:
                line += f", and the columns of its {part.files:,} files"
            if part.advice:
                advice.append(part.advice)
    for each in (line, *advice):
        echo(each)


@click.command("schema", short_help="Print the JSON Schema of specs, for editors.")
def schema_command() -> None:
    """Print the JSON Schema of specs, for completion and checks in an editor."""
    import json

    from placer.compiler.frontend import json_schema

    echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
