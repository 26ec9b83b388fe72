"""Where and how often a run saves checkpoints: the spec's settings and the options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placer.errors import PlacerError
from placer.plan.plan import Plan, read_sources
from placer.plan.settings.evaluation_and_stopping import (
    DEFAULT_KEEP,
    EPOCH,
    Best,
    Interval,
)
from placer.runtime.control.options import Options


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The settings of the checkpoints of a run.

    Attributes:
        folder: the folder of checkpoints.
        every: how often one is saved; one is saved at the end of a run too.
        keep: how many are kept, besides the one with the best evaluation.
        best: which evaluation is the best one, None without evaluations that say so.
    """

    folder: Path
    every: Interval
    keep: int
    best: Best | None

    def is_due(self, step: int, *, ends_epoch: bool) -> bool:
        """Whether a checkpoint is saved after a step that the spec fixes."""
        match self.every.unit:
            case "steps":
                return step % self.every.number == 0
            case "epochs":
                return ends_epoch
        return False


def checkpoint_folder(plan: Plan, spec: Path, options: Options) -> Path | None:
    """Return the folder of a run's checkpoints, absolute; None if it saves none, or if
    neither the spec nor the options name it.

    The folder in a spec is relative to that of the spec.
    """
    if options.checkpoint is not None:
        return options.checkpoint.resolve()
    if plan.checkpoint is not None and plan.checkpoint.to is not None:
        return (spec.parent / plan.checkpoint.to).resolve()
    return None


def checkpoint_settings(
    plan: Plan, build: Path, options: Options
) -> CheckpointSettings | None:
    """Return the settings of a run's checkpoints; None without a folder, as of a
    prediction."""
    planned = plan.checkpoint
    spec = build if planned is None else build / read_sources(build).spec
    folder = checkpoint_folder(plan, spec, options)
    if folder is None:
        return None
    every = EPOCH if planned is None else planned.every
    if options.checkpoint_every is not None:
        every = Interval.parse(options.checkpoint_every)
    keep = DEFAULT_KEEP if planned is None else planned.keep
    best = best_evaluation(plan)
    return CheckpointSettings(folder, every, options.checkpoint_keep or keep, best)


def best_evaluation(plan: Plan) -> Best | None:
    """Return which evaluation is the best one: as `train.checkpoint.best` says, else
    `train.early_stopping`, else the smallest loss; None if there are no evaluations, or
    if they do not have the loss."""
    if plan.checkpoint is not None and plan.checkpoint.best is not None:
        return plan.checkpoint.best
    if plan.early_stopping is not None:
        return plan.early_stopping.best
    if plan.evaluation is None or plan.minimize not in plan.metrics:
        return None
    return Best(plan.minimize, "min")


def needs_folder(plan: Plan, options: Options) -> bool:
    """Whether a run saves checkpoints, and neither its spec nor its options name their
    folder."""
    is_named = options.checkpoint is not None
    return not is_named and plan.checkpoint is not None and plan.checkpoint.to is None


def check_folder(plan: Plan, options: Options) -> None:
    """Raise PlacerError for a run that saves checkpoints in a folder that is not
    named."""
    if needs_folder(plan, options):
        raise PlacerError(
            f"'{plan.name}' saves checkpoints, and its spec does not name their folder",
            hint="name it with --checkpoint DIR, or in train.checkpoint.to",
        )
