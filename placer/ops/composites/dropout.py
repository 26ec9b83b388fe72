"""dropout: a random mask in training, nothing in evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from placer.config.sources import POSITION
from placer.errors import OpError
from placer.ops.common.checks import arity, need_float
from placer.ops.composite import Composite, Part, Written, stream
from placer.ops.declaration import Attr, Attrs, Case, Operand, Types
from placer.types import TensorType

_X = (Operand("x", "float, [batch, …]"),)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("dropout", _X, types)
    need_float("dropout", "x", types, 0)
    if not types[0].has_rows:
        raise OpError(f"dropout needs rows, 'x' is {types[0]}", operand=0)
    if not 0 <= attrs["rate"] < 1:
        raise OpError(
            f"dropout needs a rate of at least 0 and below 1, not {attrs['rate']:g}",
            attr="rate",
        )
    return (types[0],)


def _parts(written: Written) -> Iterator[Part]:
    (x,) = written.operands
    attrs = {
        "rate": written.attrs["rate"],
        "stream": stream(written.seed, written.name),
    }
    yield Part("drop", (x, POSITION), (".dropped",), attrs)
    yield Part("if_training", (f"{written.name}.dropped", x))


DROPOUT = Composite(
    "dropout",
    "In training, each element is 0 with probability `rate`, and the others are divided"
    " by what is left, 1 - rate; in evaluation, x as it is. The mask is a function of"
    " the spec's seed, the op's name, the step and the row's number in the global batch,"
    " so it does not depend on where a row is computed.",
    _X,
    _infer,
    _parts,
    attrs=(Attr("rate", float, "the probability of a zero", required=True),),
    formula="out = x / (1 - rate) where the element's bits say so, else 0",
    source="Srivastava et al. (2014); bits by threefry (Salmon et al. 2011)",
    cases=(Case(("float32[batch, 64]",), {"rate": 0.5}),),
    example="{name: dropped, op: dropout, in: h1, rate: 0.5}",
)
