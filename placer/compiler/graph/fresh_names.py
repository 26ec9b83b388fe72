"""Makes unique names, for values that a pass adds and for names in programs."""

from __future__ import annotations


def unique_name(
    stem: str, used_names: set[str], separator: str = ".", first: int = 1
) -> str:
    """Return `stem`, with a number if the name is taken: `h.gather`, `h.gather.1`. The
    number follows the separator and counts from `first`. Adds the result to
    `used_names`."""
    name, i = stem, first
    while name in used_names:
        name, i = f"{stem}{separator}{i}", i + 1
    used_names.add(name)
    return name
