"""The setting `shuffle: {window: N, lanes: L}` of a source that is loaded in pieces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from placer.plan.settings.data.sources import WITH_PIECES, Source
from placer.plan.settings.fields import Count, doc
from placer.plan.settings.mistake import Mistake

DEFAULT_LANES = 64
"""The default number of lanes; a smaller batch has one lane per row."""


class Window(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shuffle within a window of rows, so that memory need not hold all rows."""

    window: Annotated[Count, doc("rows to keep in memory, over all lanes")]
    lanes: Annotated[
        Count | None,
        doc(
            f"number of readers that each fill a part of every batch; by default {DEFAULT_LANES}"
        ),
    ] = None

    @property
    def parts(self) -> int:
        """The number of lanes, once the default is filled in."""
        assert self.lanes is not None
        return self.lanes

    def check(self, source: Source, split: str | None, batch: int) -> Mistake | None:
        """Return a mistake in a window for a source, or None. `lanes` must be set."""
        if not source.declaration.pieces:
            return Mistake(
                ("shuffle",),
                f"a window works with {WITH_PIECES} sources, not with {source.text}",
                "write shuffle: true to shuffle all rows in memory",
                of_key=True,
            )
        if split is not None:
            return Mistake(
                ("split",),
                "'split' needs all rows in memory, and a window keeps only some of them",
                "write the test rows to a separate file",
                of_key=True,
            )
        lanes = self.lanes
        if lanes is None or lanes > batch:
            return Mistake(
                ("shuffle", "lanes"),
                f"a batch of {batch} rows is too small for {lanes} lanes",
                "use at most one lane for each row of a batch",
            )
        if self.window < lanes:
            return Mistake(
                ("shuffle", "window"),
                f"a window of {self.window} rows is too small for {lanes} lanes",
                "enlarge the window: all lanes share its rows",
            )
        return None

    def __str__(self) -> str:
        return f"{{window: {self.window}, lanes: {self.lanes}}}"
