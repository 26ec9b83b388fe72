"""Names of values that a pass makes."""

from __future__ import annotations


def fresh(stem: str, taken: set[str]) -> str:
    """The stem, with a number where it is taken: `h.gather`, `h.gather.1`. It is taken
    from now on."""
    name, i = stem, 1
    while name in taken:
        name, i = f"{stem}.{i}", i + 1
    taken.add(name)
    return name
