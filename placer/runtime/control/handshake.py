"""Checks before the first step that all nodes have the same build, options and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from placer.errors import DataError, RunError
from placer.plan.plan import Plan
from placer.runtime.control.barrier import HANDSHAKE, barrier
from placer.runtime.control.differing import list_values
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution
from placer.runtime.control.options import OPTIONS, Options
from placer.runtime.control.versions import check_versions, own_versions
from placer.system.files.regular import open_regular

VERSIONS: Final = "versions"
REPLAYED: Final = "replayed run"
GIVEN, NOT_GIVEN = "given", "not given"


def agree(execution: Execution, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Compare facts between all nodes, and return the common value of each fact.

    Nodes also compare their builds, their options and the versions of packages. Small
    differences between versions cause a warning on the control node.

    Args:
        facts: the facts of this node by name; None for a fact that it does not know.

    Raises:
        RunError: on the control node, if nodes differ.
    """
    plan, channel = execution.plan, execution.channel
    options = option_facts(execution.options, is_control=channel.node == plan.control)
    own = {VERSIONS: own_versions(), "build": plan.digest, **options, **facts}

    def check(reports: list[Any]) -> None:
        _warnings(plan, reports)
        for node, node_report in zip(plan.nodes, reports, strict=True):
            if node_report.keys() != own.keys():
                raise RunError(
                    f"{node.name} runs another version of placer",
                    hint="run the same version on every node",
                )
        for fact in own:
            if fact != VERSIONS:
                _common(plan, reports, fact)

    reports = barrier(plan, channel, own, HANDSHAKE, check)
    if channel.node == plan.control:
        for text in _warnings(plan, reports):
            execution.report(NodeWarning(text))
    return {fact: _common(plan, reports, fact) for fact in facts}


def option_facts(options: Options, *, is_control: bool) -> dict[str, Any]:
    """Return the facts about a node's options that nodes compare; see `Agreement`."""
    facts: dict[str, Any] = {}
    for option in OPTIONS:
        value = getattr(options, option.name)
        fact = NOT_GIVEN
        if value != option.default:
            shows_value = option.agreement != "given" and value is not True
            fact = GIVEN if option.file or not shows_value else str(value)
        if option.agreement == "control" and fact == NOT_GIVEN and not is_control:
            facts[option.flag] = None
        elif option.agreement != "own":
            facts[option.flag] = fact
    return facts


def _warnings(plan: Plan, reports: Sequence[Mapping[str, Any]]) -> list[str]:
    versions = {
        node.name: report[VERSIONS]
        for node, report in zip(plan.nodes, reports, strict=True)
        if isinstance(
            report.get(VERSIONS), dict
        )  # else another check finds the difference
    }
    return check_versions(versions)


def fingerprint(file: Path) -> str:
    """Return a digest of a file, for a comparison between nodes."""
    try:
        with open_regular(file) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DataError(f"{file} cannot be read as parameters: {error}") from error


def _common(plan: Plan, reports: Sequence[Mapping[str, Any]], fact: str) -> Any:
    """Return the common value of a fact, ignoring None; raise RunError if nodes differ."""
    values: dict[str, Any] = {
        node.name: entry[fact]
        for node, entry in zip(plan.nodes, reports, strict=True)
        if entry[fact] is not None
    }
    if len(set(values.values())) > 1:
        listed = list_values(values)
        if fact.endswith(" rows"):
            raise RunError(
                f"the nodes do not read the same data: {fact} differ: {listed}",
                hint="make the source return the same rows on every node",
            )
        if fact == REPLAYED:
            raise RunError(
                f"the files of --replay-order come from different runs: {listed}",
                hint="name a folder with the recorded order of all nodes of one run",
            )
        raise RunError(
            f"the nodes were not started with the same build and options: {fact}:"
            f" {listed}",
            hint="give every node of a run the same build and options",
        )
    return next(iter(values.values()), None)
