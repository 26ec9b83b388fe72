"""The error of an op that cannot be exported."""

from __future__ import annotations

from placer.errors import PlacerError


class OpNotExportableError(PlacerError):
    """An op that an exported model cannot have; `op` is its name."""

    def __init__(self, op: str, message: str, *, hint: str | None) -> None:
        super().__init__(message, hint=hint)
        self.op = op
