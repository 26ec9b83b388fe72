"""Numbers that a spec writes: what is wrong with one, in words, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from placer.errors import did_you_mean


def real(
    value: object, *, least: float | None = None, above: float | None = None
) -> str | None:
    """What keeps `value` from being a finite number within its bounds, or None.

    `least` is the smallest number allowed, `above` one that it must exceed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, not {shown(value)}"
    try:
        if not isfinite(value):
            return f"must be finite, not {value}"
    except OverflowError:
        return "must be finite, and is more than a float can be"
    if least is not None and value < least:
        return f"must be at least {least:g}, not {value}"
    if above is not None and value <= above:
        return f"must be greater than {above:g}, not {value}"
    return None


def whole(value: object, *, least: int) -> str | None:
    """What keeps `value` from being a whole number of at least `least`, or None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a whole number, not {shown(value)}"
    return f"must be at least {least}, not {value}" if value < least else None


def unknown(key: object, valid: Iterable[str], what: str) -> str:
    """The message for a key that is none of `valid`, with the nearest that is."""
    names = sorted(valid)
    hint = did_you_mean(str(key), names)
    return f"unknown {what} '{key}'" + (f"; {hint}" if hint else "")


def keys(
    given: Mapping[str, object], required: Iterable[str], optional: Iterable[str]
) -> str | None:
    """What is wrong with the keys of a mapping: one unknown or one missing, or None."""
    must = tuple(required)
    valid = {*must, *optional}
    for key in given:
        if key not in valid:
            return unknown(key, valid, "key")
    missing = [key for key in must if key not in given]
    return f"'{missing[0]}' is missing" if missing else None


def shown(value: object) -> str:
    """A value as a message quotes it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text '{value}'"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {list(shape)}"
    text = str(value)
    return text if len(text) <= 64 and text.isprintable() else type(value).__name__
