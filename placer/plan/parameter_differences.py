"""Compares parameters by name and shape."""

from __future__ import annotations

from collections.abc import Mapping

from placer.errors import did_you_mean


def find_differences(
    stored: Mapping[str, str], declared: Mapping[str, str]
) -> list[str]:
    """Return a sentence for each parameter that differs, sorted by name.

    Args:
        stored: the type or the shape of each given parameter, by name.
        declared: those of the model's parameters, by name.
    """
    problems = []
    for name in sorted({*stored, *declared}):
        if name not in stored:
            problems.append(f"parameter {name} is missing")
        elif name not in declared:
            hint = did_you_mean(name, set(declared) - set(stored) or declared)
            near = "" if hint is None else f"; {hint}"
            problems.append(f"parameter {name} is not in the model{near}")
        elif stored[name] != declared[name]:
            problems.append(
                f"parameter {name} is {stored[name]}, the model has {declared[name]}"
            )
    return problems
