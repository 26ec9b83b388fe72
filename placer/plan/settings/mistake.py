"""The error type that all checks of settings return."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Mistake:
    """An error in settings, with a hint.

    `Problems.add_mistake` finds the position in the spec by the path, and
    `placer.plan.data_positions` does the same for errors of a run.

    Attributes:
        path: the keys and indices from the settings to the wrong value.
        message: the problem.
        hint: how to fix it.
        of_key: whether the last key of `path` is wrong, rather than its value.
    """

    path: tuple[str | int, ...]
    message: str
    hint: str | None = None
    of_key: bool = False

    def below(self, *keys: str | int) -> Mistake:
        """Return the mistake with `keys` before its path."""
        return replace(self, path=(*keys, *self.path))


class MistakeError(ValueError):
    """Settings contradict each other.

    msgspec turns it into a ValidationError, so decoding a plan fails as well.
    """

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


def refuse(mistake: Mistake | None) -> None:
    """Raise MistakeError if given a mistake. Structs call it in `__post_init__`."""
    if mistake is not None:
        raise MistakeError(mistake)
