"""Combines the settings of publications in the spec with the options of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placer.errors import PlacerError
from placer.plan.plan import Plan, read_sources
from placer.plan.settings.evaluation_and_stopping import Interval, Publishing
from placer.runtime.control.options import Options


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """The settings of publications of a run.

    Attributes:
        folder: the folder of publications.
        every: the interval. The run always publishes at its end.
        base: each so many publications, one has all rows.
        keep: how many of these to keep, with the publications after them.
    """

    folder: Path
    every: Interval
    base: int
    keep: int

    def is_due(self, step: int, *, ends_epoch: bool) -> bool:
        """Whether a publication is due after this step; an interval of time adds others."""
        if self.every.unit == "steps":
            return step % self.every.number == 0
        return ends_epoch and self.every.unit == "epochs"


def publish_settings(
    plan: Plan, build: Path, options: Options
) -> PublishSettings | None:
    """Return the settings of publications of a run; None if it publishes nothing."""
    planned = plan.settings.train.publish
    if planned is None:
        return None
    if options.publish is not None:
        folder = options.publish.resolve()
    elif planned.folder is not None:
        spec = build / read_sources(build).spec
        folder = (spec.parent / planned.folder).resolve()
    else:
        return None
    return PublishSettings(folder, planned.interval, planned.base, planned.keep)


def check_publishing(plan: Plan, options: Options) -> None:
    """Raise PlacerError if a run has no folder for publications, or cannot publish."""
    planned: Publishing | None = plan.settings.train.publish
    if planned is None:
        if options.publish is not None:
            raise PlacerError(
                f"'{plan.name}' was compiled without the code for serving, so 'publish'"
                " (--publish) cannot publish it",
                hint="add train.publish to the spec and compile it again, or name the spec",
            )
    elif planned.folder is None and options.publish is None:
        raise PlacerError(
            f"'{plan.name}' publishes, but its spec names no folder for it",
            hint="add 'publish' (--publish DIR), or set train.publish.folder in the spec",
        )
