"""The prefixes of columns for the classes of predictions."""

from __future__ import annotations

from collections.abc import Sequence

from placer.plan.plan import Output


def class_prefixes(outputs: Sequence[Output]) -> dict[str, str]:
    """Return the prefix of the class columns of each output that scores classes.

    It is the name of the output, or empty if only one output scores classes.
    """
    names = [output.name for output in outputs if output.classes is not None]
    return {name: f"{name}." if len(names) > 1 else "" for name in names}
