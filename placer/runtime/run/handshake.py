"""What all nodes must agree on before the first step, told to each other at a barrier."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placer.build.plan import Plan
from placer.channel.protocol import Channel
from placer.errors import DataError, RunError
from placer.files.regular import open_regular
from placer.runtime.run.barrier import AGREE, barrier


@dataclass(frozen=True, slots=True)
class Told:
    """What one node says of itself. Rows are None where it reads none."""

    training_rows: int | None
    evaluation_rows: int | None
    steps: int | None
    save_params: bool
    init_params: Path | None


def agree(plan: Plan, channel: Channel, told: Told) -> tuple[int | None, int | None]:
    """Wait for all nodes; the number of training rows and of evaluation rows, so that
    all count the same steps. None where no node reads any.

    RunError where nodes do not read the same rows or were not asked to run the same
    way: on the control node, which the others hear it from.
    """
    said: dict[str, Any] = {
        "training rows": told.training_rows,
        "evaluation rows": told.evaluation_rows,
        "build": plan.digest,
        "--steps": told.steps or 0,
        "--save-params": told.save_params,
        "--init-params": _fingerprint(told.init_params),
    }

    def check(heard: list[Any]) -> None:
        for node, entry in zip(plan.nodes, heard, strict=True):
            if entry.keys() != said.keys():
                raise RunError(
                    f"{node.name} is of another version of placer",
                    hint="run the same version on every node",
                )
        for what in said:
            _common(plan, heard, what)

    heard = barrier(plan, channel, said, AGREE, check)
    training, evaluation = (
        _common(plan, heard, what) for what in ("training rows", "evaluation rows")
    )
    return training, evaluation


def _fingerprint(file: Path | None) -> str:
    """What nodes compare to know that they begin with the same parameters."""
    if file is None:
        return ""
    try:
        with open_regular(file) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DataError(f"{file} cannot be read as parameters: {error}") from error


def _common(plan: Plan, told: Sequence[Mapping[str, Any]], what: str) -> Any:
    """The one value of `what` that all nodes that know it told; RunError otherwise."""
    found: dict[str, Any] = {
        node.name: entry[what]
        for node, entry in zip(plan.nodes, told, strict=True)
        if entry[what] is not None
    }
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in found.items())
        if what.endswith("rows"):
            raise RunError(
                f"the nodes do not read the same data: {what} differ: {listed}",
                hint="a source must give the same rows on every node",
            )
        raise RunError(
            f"the nodes were not started alike: {what}: {listed}",
            hint="give every node of a run the same build and options",
        )
    return next(iter(found.values()), None)
