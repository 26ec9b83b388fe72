"""Checks of values in a spec. Each returns a message, or None if the value is valid.

The messages start with a verb, so that the caller can put the name of the key before
them: `'size' must be at least 1, not 0`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite

from placer.errors import did_you_mean

Check = Callable[[object], str | None]


def check_real(
    value: object,
    *,
    minimum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> str | None:
    """Check that `value` is a finite number within its bounds.

    Args:
        value: The value from the spec.
        minimum: The smallest number allowed.
        above: A number that `value` must exceed.
        below: A number that `value` must not reach.

    Returns:
        What is wrong, or None.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, not {describe_value(value)}"
    try:
        if not isfinite(value):
            return f"must be finite, not {value}"
    except OverflowError:
        return "must be finite, and does not fit in a float"
    if minimum is not None and value < minimum:
        return f"must be at least {minimum:g}, not {value}"
    if above is not None and value <= above:
        return f"must be greater than {above:g}, not {value}"
    if below is not None and value >= below:
        return f"must be less than {below:g}, not {value}"
    return None


def check_whole(value: object, *, minimum: int) -> str | None:
    """Check for a whole number of at least `minimum`; return what is wrong, or None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a whole number, not {describe_value(value)}"
    return f"must be at least {minimum}, not {value}" if value < minimum else None


def check_flag(value: object) -> str | None:
    """Check for a boolean; return what is wrong, or None."""
    valid = isinstance(value, bool)
    return None if valid else f"must be true or false, not {describe_value(value)}"


def accept(value: object) -> None:
    """Accept any value: one that the caller checks itself."""


def describe_unknown(key: object, valid: Iterable[str], what: str) -> str:
    """Return the message for a key that is not in `valid`, with the nearest valid one.

    `what` says what kind of name the key is, such as `schedule`.
    """
    names = sorted(valid)
    hint = did_you_mean(str(key), names)
    return f"unknown {what} '{key}'" + (f"; {hint}" if hint else "")


def check_mapping(
    mapping: Mapping[str, object],
    required: Mapping[str, Check],
    optional: Mapping[str, Check],
) -> str | None:
    """Check the keys of a mapping, and their values by the check of each key.

    Returns the first mistake, or None.
    """
    checks = {**required, **optional}
    for key in mapping:
        if key not in checks:
            return describe_unknown(key, checks, "key")
    for key in required:
        if key not in mapping:
            return f"'{key}' is missing"
    for key, check in checks.items():
        if key in mapping and (problem := check(mapping[key])):
            return f"'{key}' {problem}"
    return None


def describe_value(value: object) -> str:
    """Return a value as a message shows it, such as `the text 'big'`."""
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
