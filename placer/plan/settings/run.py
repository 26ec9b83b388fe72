"""The settings of a run: keys of a spec, and of its section `train`.

The keys, their types, defaults and descriptions are written here only. A spec is decoded
by these structs, a model and a plan contain them, and the runtime reads them there.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from placer.plan.settings.evaluation_and_stopping import (
    Checkpointing,
    EarlyStopping,
    Evaluating,
)
from placer.plan.settings.fields import Count, Seed, doc


class ModelKeys(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings outside of the sections of a spec."""

    emulate: Annotated[bool, doc("use CPU devices instead of accelerators")] = False
    precision: Annotated[
        Literal["float32", "float64"],
        doc("float64: every float of the model is float64"),
    ] = "float32"
    seed: Annotated[Seed, doc("seed of initial values and of dropout")] = 0


class TrainKeys(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings in the section `train`."""

    minimize: Annotated[str, doc("the loss: a scalar")]
    epochs: Annotated[Count, doc("passes over the training rows")] = 1
    microbatches: Annotated[
        Count, doc("number of parts of a batch that run one after another")
    ] = 1
    schedule: Annotated[
        Literal["1f1b", "gpipe"], doc("order of the microbatches in a pipeline")
    ] = "1f1b"
    nan: Annotated[
        Literal["stop", "warn"], doc("what to do if the loss is not finite")
    ] = "stop"
    metrics: Annotated[
        list[str] | None, doc("metrics and scalars to record; by default the loss")
    ] = None
    eval: Evaluating = Evaluating()
    checkpoint: Annotated[
        Checkpointing | None, doc("save checkpoints, from which a run can continue")
    ] = None
    early_stopping: EarlyStopping | None = None


class TrainSettings(TrainKeys, frozen=True, kw_only=True):
    """The settings in the section `train`, with the metrics that are recorded.

    `minimize` is empty in a build that only predicts.
    """

    metrics: list[str]


class RunSettings(ModelKeys, frozen=True, kw_only=True):
    """The settings of a run."""

    train: TrainSettings
