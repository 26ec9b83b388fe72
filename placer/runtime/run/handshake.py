"""The handshake: before the first step, nodes check that they run the same build and
options and read the same number of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placer.build.plan import Plan
from placer.channel.protocol import Channel
from placer.errors import DataError, RunError
from placer.files.regular import open_regular
from placer.readers import Digests
from placer.runtime.program.node import Node
from placer.runtime.run.barrier import HANDSHAKE, barrier
from placer.runtime.run.opened_sources import EVALUATION, TRAINING
from placer.runtime.run.same_rows import compare_rows
from placer.runtime.run.state import Execution


def run_handshake(
    execution: Execution, node: Node
) -> tuple[Digests | None, Digests | None]:
    """Exchange what each node knows, and check that all know the same.

    Sets the number of rows of the sources of `node`, so that all nodes run the same
    steps. Returns the digests of the rows of training and evaluation, on the control
    node of a run that keeps them.

    Raises:
        RunError: on the control node, if the nodes do not read the same rows, or have
            different builds or options. It aborts the run on the other nodes.
    """
    plan, channel, options = execution.plan, execution.channel, execution.options
    training, evaluating = node.training, node.evaluating
    facts: dict[str, Any] = {
        "training rows": training.source_rows,
        "evaluation rows": evaluating.source_rows if evaluating else None,
        "build": plan.digest,
        "--steps": options.steps or 0,
        "--save-params": options.save_params is not None,
        "--init-params": start_fingerprint(execution),
        "--checkpoint": options.checkpoint is not None,
        "--checkpoint-every": options.checkpoint_every or "",
        "--resume": options.resume is not None,
        "--partial": options.partial,
        "--shrink": options.shrink,
        "--trace": options.trace is not None,
        "--trace-steps": options.trace_steps or "",
    }
    common = agree(plan, channel, facts)
    node.training = training.with_rows(common["training rows"])
    keep = execution.keeps_digests
    trained = compare_rows(plan, channel, TRAINING, training.rows, keep=keep)
    if evaluating is None:
        return trained, None
    node.evaluating = evaluating.with_rows(common["evaluation rows"])
    evaluated = compare_rows(plan, channel, EVALUATION, evaluating.rows, keep=keep)
    return trained, evaluated


def agree(plan: Plan, channel: Channel, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Exchange facts with all nodes, and return those that all have in common.

    A fact is None on a node that does not know it. Raises RunError on the control node
    if nodes differ.
    """

    def check(reports: list[Any]) -> None:
        for node, node_report in zip(plan.nodes, reports, strict=True):
            if node_report.keys() != facts.keys():
                raise RunError(
                    f"{node.name} runs another version of placer",
                    hint="run the same version on every node",
                )
        for fact in facts:
            _common(plan, reports, fact)

    reports = barrier(plan, channel, dict(facts), HANDSHAKE, check)
    return {fact: _common(plan, reports, fact) for fact in facts}


def start_fingerprint(execution: Execution) -> str | None:
    """Return a digest of the parameters that `--init-params` names; "" without the
    option, and None on a node that has not read them because it has no tables."""
    if execution.options.init_params is None:
        return ""
    start = execution.start
    return None if start is None else fingerprint(start.file)


def fingerprint(file: Path) -> str:
    """Return a digest of a file, to compare between nodes."""
    try:
        with open_regular(file) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DataError(f"{file} cannot be read as parameters: {error}") from error


def _common(plan: Plan, reports: Sequence[Mapping[str, Any]], fact: str) -> Any:
    """Return the value of a fact that all nodes have in common; RunError otherwise.
    Nodes whose report has None for it are left out."""
    values: dict[str, Any] = {
        node.name: entry[fact]
        for node, entry in zip(plan.nodes, reports, strict=True)
        if entry[fact] is not None
    }
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in values.items())
        if fact.endswith("rows"):
            raise RunError(
                f"the nodes do not read the same data: {fact} differ: {listed}",
                hint="a source must return the same rows on every node",
            )
        raise RunError(
            f"the nodes were not started with the same build and options: {fact}:"
            f" {listed}",
            hint="give every node of a run the same build and options",
        )
    return next(iter(values.values()), None)
