"""drop: random masks that do not depend on the node that computes a row."""

from __future__ import annotations

from placer.ops.common.costs import flops_per_element
from placer.ops.declaration import Attrs, Declaration, case, required
from placer.ops.operand import Operand, Types, check_operand
from placer.place.types import BATCH, TensorType

POSITION = Operand(
    "position", "uint32[batch, 2]: the step and the row's index in the global batch"
)
STREAM = required("stream", int, "the number of the random stream, below 2⁶³")


def check_position(types: Types, index: int) -> None:
    """Raise OpError unless operand `index` has the type of `POSITION`."""
    valid = types[index] == TensorType("uint32", (BATCH, 2))
    check_operand(types, index, "position", valid, "a position uint32[batch, 2]")


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_operand(types, 0, "x", types[0].has_rows, "rows")
    check_position(types, 1)
    return (types[0],)


DROP = Declaration(
    "drop",
    "Sets random elements of x to 0 and divides the others by 1 - rate. The"
    " random bits depend only on the stream, the step, the row's index in the"
    " global batch and the element's index in the row.",
    (Operand("x", "float, [batch, …]", dtype="float"), POSITION),
    _infer,
    flops=flops_per_element(2),
    grad_flops=lambda types, attrs, wrt: 2 * types[0].numel() * len(wrt),
    attrs=(
        required(
            "rate", float, "the probability of setting an element to 0, in [0, 1)"
        ),
        STREAM,
    ),
    residuals=lambda types, attrs: (TensorType("bool", types[0].shape),),
    inserted=True,
    formula="out = x / (1 - rate) where kept, else 0; dx = dy / (1 - rate) where kept",
    source="threefry2x32 (Salmon et al. 2011)",
    cases=(case("float32[batch, 64], uint32[batch, 2]", rate=0.5, stream=1),),
)
