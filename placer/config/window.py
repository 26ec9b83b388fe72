"""The setting `shuffle: {window: N, lanes: L}` of a source that is read by pieces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from placer.config.fields import Count, doc

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

    def __str__(self) -> str:
        return f"{{window: {self.window}, lanes: {self.lanes}}}"
