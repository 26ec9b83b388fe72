"""Compares parameters by name and shape."""

from __future__ import annotations

from collections.abc import Mapping

from placer.errors import did_you_mean

MAX_DESCRIBED = 10
"""Other differences are only counted: all parameters of a large model may differ."""


def find_differences(
    stored: Mapping[str, str], declared: Mapping[str, str]
) -> list[str]:
    """Describe the first parameters that differ, by name, and count the other ones.

    Args:
        stored: the type or the shape of each given parameter, by name.
        declared: those of the model's parameters, by name.
    """
    names = sorted(
        name for name in {*stored, *declared} if stored.get(name) != declared.get(name)
    )
    problems = []
    for name in names[:MAX_DESCRIBED]:
        if name not in stored:
            problems.append(f"parameter {name} is missing")
        elif name not in declared:
            hint = did_you_mean(name, set(declared) - set(stored) or declared)
            near = "" if hint is None else f"; {hint}"
            problems.append(f"parameter {name} is not in the model{near}")
        else:
            problems.append(
                f"parameter {name} is {stored[name]}, the model has {declared[name]}"
            )
    if (more := len(names) - MAX_DESCRIBED) > 0:
        problems.append(f"and {more:,} more parameters differ")
    return problems
