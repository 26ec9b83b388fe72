"""What the compiler puts in: sums, clipping, rows of a part."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from placer.errors import OpError
from placer.ops.common.checks import (
    arity,
    each_row,
    need_float,
    need_same_dtype,
)
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.types import TensorType

_SUMMANDS = (Operand("xs", "float, all of one type", variadic=True),)


def _no_gradient(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    return 0


def _need_floats(kind: str, operands: Sequence[Operand], types: Types) -> None:
    arity(kind, operands, types)
    for index in range(len(types)):
        need_float(kind, f"xs[{index}]", types, index)


def _floats(kind: str, types: Types) -> None:
    _need_floats(kind, _SUMMANDS, types)
    need_same_dtype(kind, [f"xs[{i}]" for i in range(len(types))], types)


def _same_shape(kind: str, types: Types) -> None:
    for index, type_ in enumerate(types):
        if type_.shape != types[0].shape:
            raise OpError(
                f"{kind} needs operands of one shape,"
                f" 'xs[0]' is {types[0]}, 'xs[{index}]' is {type_}",
                operand=index,
            )


def _infer_accumulate(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _floats("accumulate", types)
    _same_shape("accumulate", types)
    return (types[0],)


ACCUMULATE = Declaration(
    "accumulate",
    "The sum of values of one type, added in the order of the operands, so that a"
    " run repeats bit for bit.",
    _SUMMANDS,
    _infer_accumulate,
    each_row,
    lambda types, attrs: (len(types) - 1) * types[0].numel(),
    _no_gradient,
    linear=lambda types, attrs: (tuple(range(len(types))),),
    differentiable=False,
    inserted=True,
    formula="out = ((xs[0] + xs[1]) + xs[2]) + …",
    cases=(Case(("float32[8]", "float32[8]", "float32[8]")),),
    example="%w.grad = accumulate(%w.grad.0, %w.grad.1)",
)


_SQUARED = (Operand("xs", "float of any dtypes and shapes", variadic=True),)


def _infer_squares(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _need_floats("sum_of_squares", _SQUARED, types)
    wide = any(t.dtype == "float64" for t in types)
    return (TensorType("float64" if wide else "float32"),)


def _rows_squares(types: Types, attrs: Attrs) -> Rule:
    return "reduce" if all(t.has_rows for t in types) else "whole"


SUM_OF_SQUARES = Declaration(
    "sum_of_squares",
    "The sum of the squares of all elements of all operands, operand after operand: in"
    " float32, or in float64 where an operand is that, so that a half float's square"
    " does not overflow.",
    _SQUARED,
    _infer_squares,
    _rows_squares,
    lambda types, attrs: sum(2 * t.numel() for t in types),
    _no_gradient,
    differentiable=False,
    inserted=True,
    formula="out = Σ xs[0]² + Σ xs[1]² + …",
    cases=(
        Case(("float32[64, 128]", "float32[128]")),
        Case(("bfloat16[64, 128]", "float32[128]")),
    ),
    example="%clip.square = sum_of_squares(%w.grad, %b.grad)",
)


def _scalars(kind: str, types: Types) -> None:
    _floats(kind, types)
    for index, type_ in enumerate(types):
        if type_.rank:
            raise OpError(
                f"{kind} needs scalars, 'xs[{index}]' is {type_}", operand=index
            )


def _need_bound(kind: str, name: str, attrs: Attrs) -> None:
    if not (attrs[name] > 0 and isfinite(attrs[name])):
        raise OpError(
            f"{kind} needs a finite {name} above 0, not {attrs[name]}", attr=name
        )


def _infer_clip(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _scalars("clip_scale", types)
    _need_bound("clip_scale", "max_norm", attrs)
    return (types[0],)


CLIP_SCALE = Declaration(
    "clip_scale",
    "What a gradient is multiplied by so that the global norm is at most `max_norm`,"
    " from sums of squares, added in the order of the operands.",
    (Operand("xs", "float scalars: sums of squares", variadic=True),),
    _infer_clip,
    each_row,
    lambda types, attrs: len(types) + 2,
    _no_gradient,
    attrs=(Attr("max_norm", float, "the largest norm that stays", required=True),),
    differentiable=False,
    inserted=True,
    formula="out = min(1, max_norm / √Σ xs)",
    source="optax.clip_by_global_norm",
    cases=(Case(("float32[]", "float32[]"), {"max_norm": 1.0}),),
    example="%clip.scale = clip_scale(%square0, %square1) {max_norm = 1.0}",
)


def _infer_clip_value(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("clip_value", (Operand("x"),), types)
    need_float("clip_value", "x", types, 0)
    _need_bound("clip_value", "limit", attrs)
    return (types[0],)


CLIP_VALUE = Declaration(
    "clip_value",
    "A gradient with every element held within ±`limit`.",
    (Operand("x", "float, any shape"),),
    _infer_clip_value,
    each_row,
    lambda types, attrs: 2 * types[0].numel(),
    _no_gradient,
    attrs=(Attr("limit", float, "the largest element that stays", required=True),),
    differentiable=False,
    inserted=True,
    formula="out = min(limit, max(-limit, x))",
    source="optax.clip",
    cases=(Case(("float32[8]",), {"limit": 0.5}),),
    example="%w.grad.clipped = clip_value(%w.grad) {limit = 0.5}",
)


def _infer_trust(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _scalars("trust_ratio", types)
    if len(types) % 2:
        raise OpError(f"trust_ratio needs as many sums of both, {len(types)} given")
    return (types[0],)


TRUST_RATIO = Declaration(
    "trust_ratio",
    "How far a step goes: the norm of a parameter against that of its direction, from"
    " sums of squares, the first half of the operands the parameter's; 1 where either"
    " norm is 0.",
    (Operand("xs", "float scalars: sums of squares", variadic=True),),
    _infer_trust,
    each_row,
    lambda types, attrs: len(types) + 3,
    _no_gradient,
    attrs=(
        Attr("coefficient", float, "multiplies the ratio", default=1.0),
        Attr("eps", float, "added to the direction's norm", default=0.0),
    ),
    differentiable=False,
    inserted=True,
    formula="out = coefficient · √Σ w² / (√Σ direction² + eps)",
    source="optax.scale_by_trust_ratio; LARS (You et al. 2017), LAMB (You et al. 2020)",
    cases=(Case(("float32[]", "float32[]"), {"coefficient": 0.001}),),
    example="%w.ratio = trust_ratio(%w.square, %w.direction.square)",
)

_HOLD = (
    Operand("x", "any type"),
    Operand("after", "any type: what x waits for", optional=True),
)


def _infer_hold(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("hold", _HOLD, types)
    return (types[0],)


HOLD = Declaration(
    "hold",
    "x as it is, after another value is there, and never merged with what is computed"
    " of x itself: what a block computes again for its backward begins with it.",
    _HOLD,
    _infer_hold,
    each_row,
    lambda types, attrs: 0,
    _no_gradient,
    differentiable=False,
    inserted=True,
    source="jax.lax.optimization_barrier, as in jax.checkpoint",
    cases=(Case(("float32[batch, 8]", "float32[batch, 4]")),),
    example="%x.again = hold(%x, %y.grad)",
)

_SIDES = (
    Operand("training", "any type: what a training step takes"),
    Operand("evaluation", "the same type: what an evaluation takes"),
)


def _infer_if_training(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("if_training", _SIDES, types)
    if types[0] != types[1]:
        raise OpError(
            f"if_training needs operands of one type, 'training' is {types[0]},"
            f" 'evaluation' is {types[1]}",
            operand=1,
        )
    return (types[0],)


IF_TRAINING = Declaration(
    "if_training",
    "One value in a training step, another in an evaluation. The passes `train` and"
    " `evaluate` put the one or the other in its place, so no program holds it.",
    _SIDES,
    _infer_if_training,
    each_row,
    lambda types, attrs: 0,
    _no_gradient,
    constant=(1,),
    inserted=True,
    cases=(Case(("float32[batch, 8]", "float32[batch, 8]")),),
    example="%d = if_training(%d.dropped, %x)",
)

_PART = (
    Attr("own", list[int], "which of the parts, from 0", required=True),
    Attr("parts", int, "how many parts there are", required=True),
)


def _check_part(kind: str, types: Types, attrs: Attrs) -> None:
    arity(kind, (Operand("x"),), types)
    if not types[0].has_rows:
        raise OpError(f"{kind} needs rows, 'x' is {types[0]}", operand=0)
    if attrs["parts"] < 1:
        raise OpError(
            f"{kind} needs at least 1 part, not {attrs['parts']}", attr="parts"
        )
    for index in attrs["own"]:
        if not 0 <= index < attrs["parts"]:
            raise OpError(f"{kind} has part {index} of {attrs['parts']}", attr="own")


def _infer_split(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_part("split_rows", types, attrs)
    return (types[0],)


SPLIT_ROWS = Declaration(
    "split_rows",
    "The rows of some parts of a value that is whole: contiguous, parts as even as"
    " possible, the first ones longer; a part may be empty. The type stays that of the"
    " global value, the layout is split.",
    (Operand("x", "any dtype, [batch, …], whole"),),
    _infer_split,
    lambda types, attrs: "whole",
    lambda types, attrs: 0,
    _no_gradient,
    attrs=_PART,
    linear=lambda types, attrs: ((0,),),
    differentiable=False,
    inserted=True,
    formula="out = x[low:high]",
    cases=(Case(("float32[batch, 8]",), {"own": (0,), "parts": 2}),),
    example="%h.shard = split_rows(%h) {own = [0], parts = 2}",
)


def _infer_pad(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_part("pad_rows", types, attrs)
    return (types[0],)


PAD_ROWS = Declaration(
    "pad_rows",
    "The global value that is zero outside the rows of some parts: the inverse of"
    " `split_rows`, whose results over all parts add up to the whole.",
    (Operand("x", "any dtype, [batch, …], the rows of these parts"),),
    _infer_pad,
    lambda types, attrs: "reduce",
    lambda types, attrs: 0,
    _no_gradient,
    attrs=_PART,
    linear=lambda types, attrs: ((0,),),
    counts=lambda types, attrs: True,
    differentiable=False,
    inserted=True,
    formula="out[low:high] = x, 0 elsewhere",
    cases=(Case(("float32[batch, 8]",), {"own": (0,), "parts": 2}),),
    example="%h.part = pad_rows(%h) {own = [0], parts = 2}",
)


DECLARATIONS = (
    ACCUMULATE,
    SUM_OF_SQUARES,
    CLIP_SCALE,
    CLIP_VALUE,
    TRUST_RATIO,
    IF_TRAINING,
    HOLD,
    SPLIT_ROWS,
    PAD_ROWS,
)
