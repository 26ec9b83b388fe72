"""The setting `shuffle: {window: N, lanes: L}` of a source that is read by pieces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from placer.plan.settings.data.sources import WITH_PIECES, Source
from placer.plan.settings.fields import Count, doc
from placer.plan.settings.mistake import Mistake

DEFAULT_LANES = 64
"""The number of lanes where a spec does not say it, unless a batch has fewer rows."""


class Window(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rows are shuffled within a window, so that they need not all be in memory."""

    window: Annotated[Count, doc("rows in memory, of all lanes together")]
    lanes: Annotated[
        Count | None,
        doc(f"parts of a batch, each with rows of its own; by default {DEFAULT_LANES}"),
    ] = None

    @property
    def parts(self) -> int:
        """The number of lanes, of a source whose settings are complete."""
        assert self.lanes is not None
        return self.lanes

    def check(self, source: Source, split: str | None, batch: int) -> Mistake | None:
        """Return what is wrong with a window with its number of lanes, of a source with
        this split and batch. The path of the mistake is one of the source's settings."""
        if not source.declaration.pieces:
            return Mistake(
                ("shuffle",),
                f"a window is for {WITH_PIECES} sources, not for {source.text}",
                "shuffle: true gives a new order of all rows, which are in memory",
                of_key=True,
            )
        if split is not None:
            return Mistake(
                ("split",),
                "'split' permutes all rows, and of a source with a window they are not in"
                " memory",
                "write the rows for testing to a file of their own",
                of_key=True,
            )
        lanes = self.lanes
        if lanes is None or lanes > batch:
            return Mistake(
                ("shuffle", "lanes"),
                f"a batch of {batch} has no row for each of {lanes} lanes",
                "use at most as many lanes as a batch has rows",
            )
        if self.window < lanes:
            return Mistake(
                ("shuffle", "window"),
                f"a window of {self.window} has no row for each of {lanes} lanes",
                "the window is that of all lanes together: each has its part of it",
            )
        return None

    def __str__(self) -> str:
        return f"{{window: {self.window}, lanes: {self.lanes}}}"
