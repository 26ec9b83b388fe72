"""Describes values in messages."""

from __future__ import annotations

from collections.abc import Mapping


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
