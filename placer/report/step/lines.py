"""Formats the time of a step as lines for the end of a traced run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from placer.compiler.build_or_spec import load_build
from placer.plan.plan import Plan
from placer.report.step.step_time import read_step_time

_WIDTH: Final = 96


def step_lines(trace: Path, build: Path, plan: Plan, load: str) -> Iterator[str]:
    """Yield the time of a step, the load of other programs, and advice, as lines.

    Raises:
        PlacerError: if the trace cannot be read, or is the trace of another build.
    """
    has_pipeline = plan.settings.train.microbatches > 1
    graph = load_build(build).graphs[0] if has_pipeline else None
    found = read_step_time(trace, plan, graph)
    if found is None:
        return
    meanwhile = f"{load[0].upper()}{load[1:]}." if load else ""
    for text in filter(None, (found.sentence, meanwhile, *found.advice)):
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="  ", subsequent_indent="    "
        )
