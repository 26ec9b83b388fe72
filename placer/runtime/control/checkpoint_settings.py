"""Combines the checkpoint settings of the spec with the options of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placer.errors import PlacerError
from placer.plan.plan import Plan, read_sources
from placer.plan.settings.evaluation_and_stopping import (
    AUTO,
    EPOCH,
    Best,
    Checkpointing,
    Interval,
)
from placer.runtime.control.options import Options


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The checkpoint settings of a run.

    Attributes:
        folder: the folder of checkpoints.
        every: the interval between checkpoints. The run always saves one at the end.
        keep: how many checkpoints to keep, in addition to the best one.
        best: how to compare evaluations to find the best checkpoint; None if the run
            cannot compare them.
        each_pass: whether one is also due after each pass of a stream.
    """

    folder: Path
    every: Interval
    keep: int
    best: Best | None
    each_pass: bool = False

    def is_due(self, step: int, *, ends_epoch: bool) -> bool:
        """Whether a checkpoint is due after this step; intervals of time and `auto` add
        others."""
        match self.every.unit:
            case "steps":
                return step % self.every.number == 0
            case "epochs":
                return ends_epoch
        return ends_epoch and self.each_pass


def checkpoint_folder(plan: Plan, spec: Path, options: Options) -> Path | None:
    """Return the absolute path of a run's checkpoint folder.

    A path in the spec is relative to the folder of the spec. The result is None if neither
    the options nor the spec name a folder.
    """
    if options.checkpoint is not None:
        return options.checkpoint.resolve()
    planned = plan.settings.train.checkpoint
    if planned is not None and planned.to is not None:
        return (spec.parent / planned.to).resolve()
    return None


def checkpoint_settings(
    plan: Plan, build: Path, options: Options
) -> CheckpointSettings | None:
    """Return the checkpoint settings of a run; None if it has no checkpoint folder."""
    planned = plan.settings.train.checkpoint
    spec = build if planned is None else build / read_sources(build).spec
    folder = checkpoint_folder(plan, spec, options)
    if folder is None:
        return None
    keys = planned or Checkpointing()
    every = keys.interval or (AUTO if options.restarts else EPOCH)
    if options.checkpoint_every is not None:
        every = Interval.parse(options.checkpoint_every)
    is_given = keys.interval is not None or options.checkpoint_every is not None
    each_pass = plan.train.stream is not None and not is_given
    keep, best = options.checkpoint_keep or keys.keep, best_evaluation(plan)
    return CheckpointSettings(folder, every, keep, best, each_pass)


def best_evaluation(plan: Plan) -> Best | None:
    """Return how to compare evaluations to find the best one.

    The rule is `train.checkpoint.best`, else `train.early_stopping`, else the smallest
    loss. The result is None if the run has no evaluations or does not report the loss.
    """
    train = plan.settings.train
    if train.checkpoint is not None and train.checkpoint.best is not None:
        return train.checkpoint.best
    if train.early_stopping is not None:
        return train.early_stopping
    if plan.evaluation is None or train.minimize not in train.metrics:
        return None
    return Best(train.minimize, "min")


def needs_folder(plan: Plan, options: Options) -> bool:
    """Whether a run saves checkpoints but has no folder for them."""
    planned = plan.settings.train.checkpoint
    return options.checkpoint is None and planned is not None and planned.to is None


def check_folder(plan: Plan, options: Options) -> None:
    """Raise PlacerError if a run saves checkpoints but has no folder for them."""
    if needs_folder(plan, options):
        raise PlacerError(
            f"'{plan.name}' saves checkpoints, but its spec names no folder for them",
            hint="add 'checkpoint' (--checkpoint DIR), or set train.checkpoint.to in"
            " the spec",
        )
