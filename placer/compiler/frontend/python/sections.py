"""The sections of a spec that `Program` accepts as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from placer.compiler.frontend.python.variable import Variable
from placer.compiler.frontend.schema import Train
from placer.plan.settings.run import ModelKeys


class Sections(TypedDict, total=False):
    """The keyword arguments of `Program`: keys of a spec, with the same meaning.

    `epochs` and the keys after it are keys of the section `train`.
    """

    name: str
    nodes: Mapping[str, Any]
    data: Mapping[str, Any]
    parameters: Sequence[Mapping[str, Any]]
    precision: Literal["float32", "float64"]
    seed: int
    emulate: bool
    predict: Mapping[str, Sequence[str | Variable]]
    epochs: int
    microbatches: int
    gradient_accumulation: int
    schedule: Literal["1f1b", "gpipe"]
    nan: Literal["stop", "warn"]
    metrics: Sequence[str | Variable]
    clip: Mapping[str, float]
    slicing: Mapping[str, Any]
    bucket_cap_mb: float
    threads: int
    eval: Mapping[str, Any]
    early_stopping: Mapping[str, Any]
    checkpoint: Mapping[str, Any]
    publish: Mapping[str, Any]


SECTION_KEYS = tuple(Sections.__annotations__)
KEYS_BEFORE_INPUTS = (*ModelKeys.__struct_fields__, "nodes")
TRAIN_KEYS = tuple(key for key in SECTION_KEYS if key in Train.__struct_fields__)
