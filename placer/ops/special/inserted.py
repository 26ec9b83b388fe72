"""Ops that only the compiler inserts: sums, gradient clipping, parts of a batch."""

from __future__ import annotations

from functools import partial

from placer.errors import OpError
from placer.ops.common.checks import check_attr, check_positive, infer_one_type
from placer.ops.common.costs import flops_per_element
from placer.ops.declaration import Attr, Attrs, Declaration, case, required
from placer.ops.operand import Operand, Types, check_operand
from placer.place.types import TensorType

_inserted = partial(Declaration, differentiable=False, inserted=True)

_SQUARES = (
    Operand(
        "xs",
        "float scalars: sums of squares",
        variadic=True,
        dtype="float",
        same="dtype",
    ),
)


ACCUMULATE = _inserted(
    "accumulate",
    "The sum of values of one type. They are added in the order of the operands,"
    " so that runs are reproducible bit for bit. Half floats are added in float32"
    " and rounded once.",
    (
        Operand(
            "xs", "float, all of one type", variadic=True, dtype="float", same="type"
        ),
    ),
    flops=lambda types, attrs: (len(types) - 1) * types[0].numel(),
    linear=lambda types, attrs: (tuple(range(len(types))),),
    formula="out = ((xs[0] + xs[1]) + xs[2]) + …",
    cases=(case("float32[8], float32[8], float32[8]"),),
)


def _infer_squares(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    wide = any(t.dtype == "float64" for t in types)
    return (TensorType("float64" if wide else "float32"),)


SUM_OF_SQUARES = _inserted(
    "sum_of_squares",
    "The sum of the squares of all elements of all operands, in the order of the"
    " operands. It is computed in float64 if an operand is float64, else in"
    " float32, so half floats do not overflow.",
    (Operand("xs", "float of any dtypes and shapes", variadic=True, dtype="float"),),
    _infer_squares,
    lambda types, attrs: "reduce" if all(t.has_rows for t in types) else "whole",
    lambda types, attrs: sum(2 * t.numel() for t in types),
    formula="out = Σ xs[0]² + Σ xs[1]² + …",
    cases=(
        case("float32[64, 128], float32[128]"),
        case("bfloat16[64, 128], float32[128]"),
    ),
)


def _check_scalars(types: Types) -> None:
    for index, type_ in enumerate(types):
        check_operand(types, index, f"xs[{index}]", type_.rank == 0, "scalars")


def _infer_clip(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_scalars(types)
    check_positive(attrs, "max_norm")
    return (types[0],)


CLIP_SCALE = _inserted(
    "clip_scale",
    "The factor that limits the global norm of a gradient to `max_norm`. The"
    " operands are sums of squares; the norm is the root of their sum.",
    _SQUARES,
    _infer_clip,
    flops=lambda types, attrs: len(types) + 2,
    attrs=(required("max_norm", float, "the maximum norm"),),
    formula="out = min(1, max_norm / √Σ xs)",
    source="optax.clip_by_global_norm",
    cases=(case("float32[], float32[]", max_norm=1.0),),
)


def _infer_clip_value(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_positive(attrs, "limit")
    return (types[0],)


CLIP_VALUE = _inserted(
    "clip_value",
    "Limits each element of a gradient to [-limit, limit].",
    (Operand("x", "float, any shape", dtype="float"),),
    _infer_clip_value,
    flops=flops_per_element(2),
    attrs=(required("limit", float, "the bound, finite and above 0"),),
    formula="out = min(limit, max(-limit, x))",
    source="optax.clip",
    cases=(case("float32[8]", limit=0.5),),
)


def _infer_clip_part(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    given = [name for name, limit in attrs.items() if limit is not None]
    if len(given) != 1:
        raise OpError("needs exactly one of global_norm, norm and value")
    check_positive(attrs, given[0])
    return tuple(types)


def _limit(name: str, what: str) -> Attr:
    return Attr(name, float, f"{what}; only one of the three is given", default=None)


CLIP_PART = _inserted(
    "clip_part",
    "Clips the gradients that a node computed from its own rows, as if all rows"
    " of the batch had the same gradients. It divides them by share, clips this"
    " estimate of the batch's gradients, and multiplies by share again. Without"
    " rows nothing changes. Every node clips its own part of the sum.",
    (Operand("xs", "float of any dtypes and shapes", variadic=True, dtype="float"),),
    _infer_clip_part,
    flops=lambda types, attrs: sum(4 * t.numel() for t in types),
    attrs=(
        _limit("global_norm", "the maximum norm of all gradients together"),
        _limit("norm", "the maximum norm of each gradient"),
        _limit("value", "the maximum absolute value of an element"),
    ),
    results=("out",),
    variadic=True,
    own_part="P",
    formula="out = share · clip(xs / share)",
    cases=(
        case("float32[8], float32[4]", global_norm=1.0),
        case("float32[8]", norm=1.0),
        case("float32[8]", value=0.5),
    ),
)


ROW_SHARE = _inserted(
    "row_share",
    "A replicated value multiplied by the node's fraction of the rows. The"
    " results of all nodes add up to the mean of the nodes' values, weighted by"
    " rows. In asynchronous training these values may differ.",
    (Operand("x", "float, any shape", dtype="float"),),
    flops=flops_per_element(1),
    own_part="P",
    formula="out = share · x, where share = own rows / rows of the batch",
    cases=(case("float32[8]"),),
)

ROW_ESTIMATE = _inserted(
    "row_estimate",
    "A node's estimate of a sum over the batch: its own part of the sum, scaled"
    " up to all rows. A replica is returned unchanged.",
    (Operand("x", "float, any shape", dtype="float"),),
    flops=flops_per_element(1),
    own_part="R",
    formula="out = x / share, where share = own rows / rows of the batch",
    cases=(case("float32[8]"),),
)


def _infer_trust(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_scalars(types)
    if len(types) % 2:
        raise OpError(
            f"needs the same number of sums for both, not {len(types)} operands"
        )
    return (types[0],)


TRUST_RATIO = _inserted(
    "trust_ratio",
    "The trust ratio of a two-phase rule: the norm of a parameter divided by the"
    " norm of its update direction; 1 if either norm is 0. The operands are sums"
    " of squares. The first half belongs to the parameter, the second half to the"
    " update direction.",
    _SQUARES,
    _infer_trust,
    flops=lambda types, attrs: len(types) + 3,
    attrs=(
        Attr(
            "coefficient",
            float,
            "a factor of the ratio",
            default=1.0,
        ),
        Attr("eps", float, "added to the norm of the update direction", default=0.0),
    ),
    formula="out = coefficient · √Σ w² / (√Σ direction² + eps)",
    source="optax.scale_by_trust_ratio; LARS (You et al. 2017), LAMB (You et al. 2020)",
    cases=(case("float32[], float32[]", coefficient=0.001),),
)

IF_TRAINING = Declaration(
    "if_training",
    "Selects one value in training and another in an evaluation. The passes"
    " `train` and `evaluate` replace the op with one of its operands, so no node"
    " program contains it.",
    (
        Operand("training", "any type: the result in training"),
        Operand("evaluation", "the same type: the result in an evaluation"),
    ),
    partial(infer_one_type, ("training", "evaluation")),
    constant_operands=lambda types, attrs: (1,),
    inserted=True,
    cases=(case("float32[batch, 8], float32[batch, 8]"),),
)


HOLD = _inserted(
    "hold",
    "Returns x after another value has been computed. The ops that recompute"
    " forward values for the backward start with it: without it, XLA would merge"
    " them with the ops of the forward.",
    (
        Operand("x", "any type"),
        Operand("after", "any type: the value that x waits for", optional=True),
    ),
    source="jax.lax.optimization_barrier, as in jax.checkpoint",
    cases=(case("float32[batch, 8], float32[batch, 4]"),),
)


def _infer_part(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_operand(types, 0, "x", types[0].has_rows, "rows")
    check_attr(attrs, "parts", attrs["parts"] >= 1, "at least 1 part")
    for index in attrs["own"]:
        if not 0 <= index < attrs["parts"]:
            raise OpError(
                f"has part {index}, but parts 0 to {attrs['parts'] - 1}", attr="own"
            )
    return (types[0],)


_part = partial(
    _inserted,
    attrs=(
        required("own", list[int], "the indices of these parts, from 0"),
        required("parts", int, "the number of parts of the batch"),
    ),
    linear=lambda types, attrs: ((0,),),
    cases=(case("float32[batch, 8]", own=(0,), parts=2),),
)

SPLIT_ROWS = _part(
    "split_rows",
    "The rows of some parts of a batch. The rows are divided into `parts`"
    " contiguous ranges. Their lengths differ by at most one, longer ranges"
    " first; a part may be empty. The type is still the type of the global value,"
    " and its layout becomes split.",
    (Operand("x", "any dtype, [batch, …], replicated"),),
    _infer_part,
    lambda types, attrs: "whole",
    formula="out = x[low:high]",
)


PAD_ROWS = _part(
    "pad_rows",
    "Places the rows of some parts into a global value that is 0 elsewhere: the"
    " inverse of `split_rows`. The sum of the results over all parts is the whole"
    " value.",
    (Operand("x", "any dtype, [batch, …]: the rows of these parts"),),
    _infer_part,
    lambda types, attrs: "reduce",
    takes_count=lambda types, attrs: True,
    formula="out[low:high] = x, 0 elsewhere",
)
