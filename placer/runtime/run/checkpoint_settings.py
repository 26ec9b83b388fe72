"""Where and how often a run saves checkpoints: the spec's settings and the options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placer.build.plan import Plan, read_sources
from placer.config.checkpoint import DEFAULT_KEEP, EPOCH, Best, Interval
from placer.errors import PlacerError
from placer.runtime.run.options import Options


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The settings of the checkpoints of a run.

    Attributes:
        folder: the folder of checkpoints.
        every: how often one is saved; one is saved at the end of a run too.
        keep: how many are kept, besides the one with the best evaluation.
        best: which evaluation is the best one: as `train.checkpoint.best` says, or else
            `train.early_stopping`; None if neither does.
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
    """Return the folder of a run's checkpoints, absolute; None if it saves none.

    The folder in a spec is relative to that of the spec.
    """
    if options.checkpoint is not None:
        return options.checkpoint.resolve()
    if plan.checkpoint is not None:
        return (spec.parent / plan.checkpoint.to).resolve()
    return None


def checkpoint_settings(
    plan: Plan, build: Path, options: Options
) -> CheckpointSettings | None:
    """Return the settings of a run's checkpoints; None if it saves none."""
    planned = plan.checkpoint
    spec = build if planned is None else build / read_sources(build).spec
    folder = checkpoint_folder(plan, spec, options)
    if folder is None:
        for name in ("checkpoint_every", "checkpoint_keep"):
            if getattr(options, name) is not None:
                flag = name.replace("_", "-")
                raise PlacerError(
                    f"--{flag} needs a folder for checkpoints",
                    hint="name it with --checkpoint DIR, or in train.checkpoint.to",
                )
        return None
    every = EPOCH if planned is None else planned.every
    if options.checkpoint_every is not None:
        every = Interval.parse(options.checkpoint_every)
    keep = DEFAULT_KEEP if planned is None else planned.keep
    best = planned.best if planned is not None else None
    if best is None and plan.early_stopping is not None:
        best = plan.early_stopping.best
    return CheckpointSettings(folder, every, options.checkpoint_keep or keep, best)
