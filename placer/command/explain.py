"""`placer explain`"""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import say
from placer.command.options import build_or_spec_argument, debug_option, no_code_option


@click.command(
    "explain", short_help="Why an op or a parameter is where it is, what crosses."
)
@build_or_spec_argument
@click.argument("name", required=False)
@no_code_option
@debug_option
def explain_command(build: Path, name: str | None, no_code: bool) -> None:
    """Say why NAME, an op or a parameter, is where it is, and what of it crosses.

    Without a NAME: all that was chosen or put in, rather than written.
    """
    from placer.command.build_or_spec import opened
    from placer.report.explanation import Build, all_choices, explanation
    from placer.report.repeated_work import repeated_line

    found = opened(build, code=not no_code)
    if name is None:
        again = repeated_line(found.plan, found.graphs[0])
        lines = [*all_choices(found.plan), *([again] if again else [])]
    else:
        drawn = Build(found.plan, found.graphs, found.written)
        lines = list(explanation(drawn, name))
    for line in lines:
        say(line)
