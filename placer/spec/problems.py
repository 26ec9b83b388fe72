"""The mistakes found so far: collected, then told together in the file's order."""

from __future__ import annotations

from collections.abc import Iterable

from placer.errors import PlacerError, Span, SpecError, SpecErrors

MOST = 50
"""No more mistakes than these are told at once."""


class Problems:
    """Collects the independent mistakes of one spec."""

    def __init__(self, unreadable: Iterable[SpecError] = ()) -> None:
        self._errors = list(unreadable)
        self._unreadable = {_position(error) for error in self._errors}

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, message: str, span: Span | None, hint: str | None = None) -> None:
        """One more mistake; nothing more is told of a value that cannot be read."""
        error = SpecError(message, span=span, hint=hint)
        if _position(error) not in self._unreadable:
            self._errors.append(error)

    def take(self, error: PlacerError, *, span: Span | None = None) -> None:
        """Another part's error as one of this spec's, at its own span or at `span`."""
        self.add(error.message, error.span or span, error.hint)

    def raise_any(self) -> None:
        """Raise the one mistake as SpecError, several as SpecErrors; none: return."""
        if not self._errors:
            return
        errors = sorted(self._errors, key=_position)
        if len(errors) == 1:
            raise errors[0]
        told = errors[:MOST]
        if len(errors) > MOST:
            told.append(SpecError(f"and {len(errors) - MOST} more mistakes"))
        raise SpecErrors(told)


def _position(error: SpecError) -> tuple[int, int]:
    span = error.span
    return (span.line, span.column) if span else (0, 0)
