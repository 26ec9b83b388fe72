"""cumsum: cumulative sums."""

from __future__ import annotations

from placer.ops.common.checks import normalize_axis, rule_along_axis
from placer.ops.declaration import Attr, Attrs, Declaration, case, flag
from placer.ops.operand import Operand, Types
from placer.place.types import TensorType


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    normalize_axis(attrs["axis"], types[0].rank)
    return (types[0],)


CUMSUM = Declaration(
    "cumsum",
    "The cumulative sum along an axis. Half floats are summed in float32.",
    (Operand("x", "float, at least one dimension", dtype="float"),),
    _infer,
    rule_along_axis,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr("axis", int, "the axis to sum along", default=-1),
        flag("reverse", "whether to start at the end of the axis"),
        flag("exclusive", "whether each sum excludes the element at its own index"),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out[i] = x[0] + … + x[i]",
    source="numpy.cumsum; reverse and exclusive as in TensorFlow",
    cases=(case("float32[batch, 20]"), case("float32[batch, 20]", axis=0)),
)
