"""The result of a run and of a compilation, in a few lines or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from placer.build.plan import Plan
from placer.place import CPU
from placer.place.ids import fold
from placer.report.numbers import count, measured, plural, size
from placer.runtime.run.events import finite

if TYPE_CHECKING:
    from placer.runtime.run.process import Result


def result_lines(result: Result) -> Iterator[str]:
    """What came of a run, for a person."""
    sent = size(sum(result.bytes_sent.values()))
    rate = count(result.samples_per_second)
    yield f"{plural(result.steps, 'step')}, {rate} samples/s, {sent} sent"
    yield f"  last epoch  {measured(result.metrics)}"
    if result.eval:
        yield f"  evaluation  {measured(result.eval)}"


def result_json(result: Result) -> str:
    """What came of a run as one JSON object on one line.

    A number that JSON lacks, as the loss of a run that diverged, is null.
    """
    return json.dumps(
        {
            "steps": result.steps,
            "metrics": finite(result.metrics),
            "eval": finite(result.eval),
            "samples_per_second": result.samples_per_second,
            "bytes_sent": result.bytes_sent,
        },
        allow_nan=False,
    )


def plan_line(plan: Plan) -> str:
    """What a compilation made, in one line."""
    programs = plural(len(plan.nodes), "program")
    edges = plural(len(plan.step_edges), "edge")
    nbytes = plural(sum(edge.nbytes for edge in plan.step_edges), "byte")
    return f"{programs} ({_by_kind(plan)}), {edges}, {nbytes} a step"


def _by_kind(plan: Plan) -> str:
    """The nodes of a plan, as `worker:0-999, ps:0-1`."""
    ids: dict[str, list[int]] = {}
    for node in plan.nodes:
        kind, _, number = node.name.partition(":")
        ids.setdefault(kind, []).append(int(number))
    return ", ".join(f"{kind}:{fold(sorted(found))}" for kind, found in ids.items())


CROWDED = 2
"""Processes for each core from which on it is said how many share them."""


def crowded(plan: Plan, cores: int) -> str | None:
    """A note where many processes share few cores."""
    if len(plan.nodes) <= CROWDED * cores:
        return None
    return f"{len(plan.nodes)} processes share {plural(cores, 'core')}"


def emulated(plan: Plan) -> str:
    """Which devices are emulated, in one line."""
    kinds = {kind for node in plan.nodes for kind in node.devices if node.computes} - {
        CPU
    }
    if not kinds:
        return "there is nothing to emulate"
    listed = " and ".join(sorted(kinds))
    return f"every {listed} is emulated by a CPU device of its own"
