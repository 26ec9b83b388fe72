"""The settings of a run: top-level keys of a spec, and the section `train`.

This is the only definition of the keys. The compiler decodes specs with these structs,
plans contain them, and the runtime reads them from the plan.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType, field

from placer.plan.settings.evaluation_and_stopping import (
    Checkpointing,
    EarlyStopping,
    Evaluating,
    Publishing,
)
from placer.plan.settings.fields import Count, Seed, doc


class ModelKeys(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The top-level settings of a spec outside of all sections."""

    emulate: Annotated[bool, doc("use CPU devices in place of accelerators")] = False
    precision: Annotated[
        Literal["float32", "float64"],
        doc("the dtype of all floats of the model"),
    ] = "float32"
    seed: Annotated[Seed, doc("seed for initial values and dropout")] = 0


class TrainKeys(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings in the section `train`."""

    minimize: Annotated[str, doc("the loss to minimize, a scalar")]
    epochs: Annotated[Count, doc("number of passes over the training rows")] = 1
    microbatches: Annotated[
        Count, doc("number of parts of a batch that run one after another")
    ] = 1
    schedule: Annotated[
        Literal["1f1b", "gpipe"], doc("order of microbatches in a pipeline")
    ] = "1f1b"
    nan: Annotated[
        Literal["stop", "warn"], doc("what to do if the loss is not finite")
    ] = "stop"
    metrics: Annotated[
        list[str] | None, doc("metrics and scalars to record; the loss by default")
    ] = None
    eval: Evaluating = Evaluating()
    checkpoint: Annotated[
        Checkpointing | None, doc("save checkpoints, so that a run can be resumed")
    ] = None
    early_stopping: EarlyStopping | None = None


class TrainSettings(TrainKeys, frozen=True, kw_only=True):
    """The section `train` with its recorded metrics filled in.

    `minimize` is empty in a build for predictions only.
    """

    metrics: list[str]
    # It is not written where it is not set: plans of other specs stay as they are.
    publishing: Publishing | UnsetType = field(default=UNSET, name="publish")

    @property
    def publish(self) -> Publishing | None:
        """Where and how often the run publishes; None if it does not."""
        return None if self.publishing is UNSET else self.publishing


class RunSettings(ModelKeys, frozen=True, kw_only=True):
    """The settings of a run."""

    train: TrainSettings
