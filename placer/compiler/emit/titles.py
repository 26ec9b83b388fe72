"""Names jitted functions by their purpose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from placer.compiler.emit.names import Names
from placer.compiler.schedule.units import Unit, purpose_of
from placer.plan.hooks import HookName

_TITLES = {
    "trust_ratio": "trust_ratios",
    "clip_scale": "compute_clip_scale",
    "clip_value": "clip",
    "clip_part": "clip",
    "row_estimate": "estimate",
    "sum_of_squares": "squared_norm",
    "accumulate": "add",
}
"""The names of functions of an optimizer, by an op kind; the first kind in a function counts."""


def name_functions(
    units: Sequence[Unit], names: Names, hook: HookName
) -> dict[int, str]:
    """Return the function name of each computed unit, by the unit's identity.

    Units with the same purpose also have their last value in the name.
    """
    titles = [(unit, _title(unit, hook)) for unit in units if unit.computed]
    counts = Counter(title for _, title in titles)
    return {
        id(unit): names.new_name(
            re.sub(r"\W", "_", f"{title}_{_last(unit)}") if counts[title] > 1 else title
        )
        for unit, title in titles
    }


def _title(unit: Unit, hook: HookName) -> str:
    purpose = purpose_of(unit.ops, hook)
    if purpose not in ("combine", "prepare"):
        return purpose
    kinds = {op.kind for op in unit.ops}
    return next((title for kind, title in _TITLES.items() if kind in kinds), purpose)


def _last(unit: Unit) -> str:
    """Return the last output of a function; of a backward function, its last forward op."""
    backward = [op for op in unit.ops if op.is_gradient]
    if backward:
        return backward[-1].operands[0].rpartition(".")[0]
    outputs = {*unit.outputs}
    computed = [v.name for op in unit.ops for v in op.results if v.name in outputs]
    named = [n for n in computed if not n.endswith((".res", ".new"))] or computed
    return named[-1]
