"""The names of jitted functions: what they compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placer.analysis.units import Unit, purpose_of

_OF_OPTIMIZERS = {
    "trust_ratio": "trust_ratios",
    "clip_scale": "clip",
    "clip_value": "clip",
    "sum_of_squares": "square_norms",
}
"""What a function with an op of an optimizer is called, what matters most first."""


def titles(units: Sequence[Unit], evaluating: bool) -> dict[int, str]:
    """The name of the function of each computed unit, by the unit's identity: its
    purpose_of, and where several have one, the last value that it computes."""
    wishes = {id(unit): _title(unit, evaluating) for unit in units if unit.computed}
    counts = Counter(wishes.values())
    of_unit = {id(unit): unit for unit in units}
    return {
        unit: f"{wish}_{_last(of_unit[unit])}" if counts[wish] > 1 else wish
        for unit, wish in wishes.items()
    }


def _title(unit: Unit, evaluating: bool) -> str:
    kinds = {op.kind for op in unit.ops}
    wish = purpose_of(unit, evaluating)
    if wish in ("combine", "prepare"):
        found = (name for kind, name in _OF_OPTIMIZERS.items() if kind in kinds)
        return next(found, "add" if "accumulate" in kinds else wish)
    return wish


def _last(unit: Unit) -> str:
    """The last value that a function computes for others; of a backward function the op
    whose gradient comes last."""
    backward = [op for op in unit.ops if op.is_gradient]
    if backward:
        return backward[-1].operands[0].rpartition(".")[0]
    outputs = {*unit.outputs}
    computed = [v.name for op in unit.ops for v in op.results if v.name in outputs]
    named = [n for n in computed if not n.endswith((".res", ".new"))] or computed
    return named[-1]
