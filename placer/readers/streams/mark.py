"""The mark that a function of a stream yields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

MAX_NBYTES: Final = 64_000
"""The largest size of a state as JSON, in bytes."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a Python stream after the rows that its function has yielded so far.

    The function of a `python:` stream yields marks between its blocks of rows. A checkpoint
    contains the last mark of each lane before the rows that were trained. A run that resumes
    calls the function with the state of this mark, or None without a mark. The function then
    yields the rows that follow the mark, the same rows each time.

    Args:
        state: numbers, texts, booleans, None, and lists and dicts of them; at most 64 kB as
            JSON. The keys of dicts are texts. The mark has a copy, in which tuples are lists.

    Attributes:
        state: the copy.

    Raises:
        TypeError: if JSON has no such value or key.
        ValueError: if a number is not finite, a text is not valid Unicode, or the state is
            too large.

    Example:
        >>> import placer
        >>> placer.Mark({"partition": 3, "offset": 1200})
        Mark(state={'partition': 3, 'offset': 1200})
    """

    state: Any

    def __post_init__(self) -> None:
        """Copy the state."""
        _check_values(self.state)
        text = json.dumps(self.state, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
        if size > MAX_NBYTES:
            message = f"the state of a mark has {size:,} bytes as JSON; {MAX_NBYTES:,} are allowed"
            raise ValueError(message)
        object.__setattr__(self, "state", json.loads(text))


def _check_values(state: object) -> None:
    """Raise TypeError for a key that is not a text, which JSON would turn into one, and for a
    value that JSON does not have."""
    seen: set[int] = set()
    waiting = [("state", state)]
    while waiting:
        name, each = waiting.pop()
        if each is None or isinstance(each, str | int | float):
            continue
        if not isinstance(each, dict | list | tuple):
            raise TypeError(
                f"the {name} of a mark is of type {type(each).__qualname__}, which JSON"
                f" does not have{_advice(each)}"
            )
        if id(each) in seen:
            continue
        seen.add(id(each))  # a state that contains itself is refused later
        if isinstance(each, dict):
            for key in each:
                if not isinstance(key, str):
                    raise TypeError(
                        f"the key {key!r} of a mark's state is not a text; write"
                        f" str(key), and int(key) to read it"
                    )
            waiting.extend((f"{name}[{key!r}]", each[key]) for key in each)
        else:
            waiting.extend((f"{name}[{i}]", item) for i, item in enumerate(each))


def _advice(value: object) -> str:
    """Return how to write a number or an array of numpy or JAX; else nothing."""
    if not hasattr(value, "tolist"):
        return ""
    plain = type(value.tolist())
    if plain in (bool, int, float):
        return f"; write {plain.__name__}(...)"
    return "; write .tolist()" if plain is list else ""
