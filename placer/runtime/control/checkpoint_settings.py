"""Where and how often a run saves checkpoints: the spec's settings and the options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placer.errors import PlacerError
from placer.plan.plan import Plan, read_sources
from placer.plan.settings.evaluation_and_stopping import Best, Checkpointing, Interval
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
    planned = plan.settings.train.checkpoint
    if planned is not None and planned.to is not None:
        return (spec.parent / planned.to).resolve()
    return None


def checkpoint_settings(
    plan: Plan, build: Path, options: Options
) -> CheckpointSettings | None:
    """Return the settings of a run's checkpoints; None without a folder, as of a
    prediction."""
    planned = plan.settings.train.checkpoint
    spec = build if planned is None else build / read_sources(build).spec
    folder = checkpoint_folder(plan, spec, options)
    if folder is None:
        return None
    keys = planned or Checkpointing()
    every = keys.interval
    if options.checkpoint_every is not None:
        every = Interval.parse(options.checkpoint_every)
    keep, best = options.checkpoint_keep or keys.keep, best_evaluation(plan)
    return CheckpointSettings(folder, every, keep, best)


def best_evaluation(plan: Plan) -> Best | None:
    """Return which evaluation is the best one: as `train.checkpoint.best` says, else
    `train.early_stopping`, else the smallest loss; None if there are no evaluations, or
    if they do not have the loss."""
    train = plan.settings.train
    if train.checkpoint is not None and train.checkpoint.best is not None:
        return train.checkpoint.best
    if train.early_stopping is not None:
        return train.early_stopping
    if plan.evaluation is None or train.minimize not in train.metrics:
        return None
    return Best(train.minimize, "min")


def needs_folder(plan: Plan, options: Options) -> bool:
    """Whether a run saves checkpoints, and neither its spec nor its options name their
    folder."""
    planned = plan.settings.train.checkpoint
    return options.checkpoint is None and planned is not None and planned.to is None


def check_folder(plan: Plan, options: Options) -> None:
    """Raise PlacerError for a run that saves checkpoints in a folder that is not
    named."""
    if needs_folder(plan, options):
        raise PlacerError(
            f"'{plan.name}' saves checkpoints, and its spec does not name their folder",
            hint="name it with --checkpoint DIR, or in train.checkpoint.to",
        )
