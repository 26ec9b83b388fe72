"""dropout: a random mask in training, the identity in evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from placer.ops.common.checks import check_attr
from placer.ops.composite import Composite, CompositeUse, Part, derive_stream
from placer.ops.declaration import Attrs, case, required
from placer.ops.operand import Operand, Types, check_operand
from placer.place.types import TensorType
from placer.plan.settings.data.sources import POSITION


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_operand(types, 0, "x", types[0].has_rows, "rows")
    needed = "a rate of at least 0 and below 1"
    check_attr(attrs, "rate", 0 <= attrs["rate"] < 1, needed, "g")
    return (types[0],)


def _expand(use: CompositeUse) -> Iterator[Part]:
    (x,) = use.operands
    attrs = {"rate": use.attrs["rate"], "stream": derive_stream(use.seed, use.name)}
    yield Part("drop", (x, POSITION), (".dropped",), attrs)
    yield Part("if_training", (f"{use.name}.dropped", x))


DROPOUT = Composite(
    "dropout",
    "Dropout. In training, sets each element to 0 with probability `rate`, and"
    " divides the others by 1 - rate. In evaluation, returns x. The mask depends"
    " only on the spec's seed, the op's name, the step and the row's index in the"
    " global batch. It does not depend on the node that computes the row.",
    (Operand("x", "float, [batch, …]", dtype="float"),),
    _infer,
    expand=_expand,
    attrs=(
        required(
            "rate", float, "the probability of setting an element to 0, in [0, 1)"
        ),
    ),
    formula="out = x / (1 - rate) with probability 1 - rate, else 0",
    source="Srivastava et al. (2014); random bits by threefry (Salmon et al. 2011)",
    cases=(case("float32[batch, 64]", rate=0.5),),
)
