"""Unique names for the values that a pass adds."""

from __future__ import annotations


def unique_name(stem: str, used_names: set[str]) -> str:
    """Return `stem`, with a number if the name is in use: `h.gather`, `h.gather.1`.

    Adds the result to `used_names`.
    """
    name, i = stem, 1
    while name in used_names:
        name, i = f"{stem}.{i}", i + 1
    used_names.add(name)
    return name
