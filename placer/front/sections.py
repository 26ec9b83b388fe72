"""The sections of a spec that a program is told by keyword."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from placer.front.variable import Variable


class Sections(TypedDict, total=False):
    """What a program is told beside its ops: keys of a spec, with their meaning there.

    `epochs` and what stands behind it are keys of the section `train`.
    """

    name: str
    nodes: Mapping[str, Any]
    data: Mapping[str, Any]
    parameters: Sequence[Mapping[str, Any]]
    precision: Literal["float32", "float64"]
    seed: int
    emulate: bool
    epochs: int
    microbatches: int
    schedule: Literal["1f1b", "gpipe"]
    nan: Literal["stop", "warn"]
    metrics: Sequence[str | Variable]
    clip: Mapping[str, float]
    slicing: Mapping[str, Any]
    eval: Mapping[str, Any]


KEYS = tuple(Sections.__annotations__)
BEFORE_INPUTS = ("emulate", "precision", "seed", "nodes")
OF_TRAIN = (
    *("epochs", "microbatches", "schedule", "nan"),
    *("metrics", "clip", "slicing", "eval"),
)
