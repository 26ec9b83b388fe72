"""What is wrong with settings: the one form in which checks return it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with settings, and what to do about it.

    A reader of specs finds the position of a mistake by its path (`Problems.add_mistake`),
    and so do errors of a run (`placer.plan.data_positions`).

    Attributes:
        path: the keys and indices that lead from the settings to the value at fault.
        message: what is wrong.
        hint: what to do.
        of_key: whether the last key of `path` is at fault itself, not its value.
    """

    path: tuple[str | int, ...]
    message: str
    hint: str | None = None
    of_key: bool = False

    def below(self, *keys: str | int) -> Mistake:
        """Return the mistake of settings that contain these, at the path `keys`."""
        return replace(self, path=(*keys, *self.path))


class MistakeError(ValueError):
    """Settings contradict each other: `mistake` says how.

    msgspec makes a ValidationError of it, so that a plan with them is refused too.
    """

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


def refuse(mistake: Mistake | None) -> None:
    """Raise MistakeError if there is a mistake. Structs call it when they are made."""
    if mistake is not None:
        raise MistakeError(mistake)
