"""Random ops without parameters: arithmetic, shapes, choices, reductions, products.

There is one function for each kind, or for several similar kinds. Each adds ops and
returns a value, or None if no value in the graph fits. Ops whose result depends on an
order or a sign use values whose elements are separated.
"""

from __future__ import annotations

from math import prod
from typing import Any

from placer.place.types import BATCH, TensorType
from support.drawn.layers import fc, separated_like
from support.drawn.sketch import (
    CLASSES,
    INPUTS,
    VOCABULARY,
    Shape,
    Sketch,
    Value,
    broadcast,
    has_width,
    is_rows,
)


def matmul(s: Sketch) -> Value | None:
    matrices = s.sources(lambda v: len(v.shape) >= 2)
    a = s.pick(matrices)
    fits = []
    for b in matrices:
        if a.shape.count(BATCH) + b.shape.count(BATCH) > 3:
            continue
        for flips in ((False, False), (False, True), (True, False), (True, True)):
            left = _flip(a.shape, flips[0])
            right = _flip(b.shape, flips[1])
            leading = broadcast(left[:-2], right[:-2])
            if left[-1] == right[-2] and leading is not None:
                fits.append((b, flips, left[-1]))
    inner_dim = a.shape[-1]
    if inner_dim != BATCH and s.pick((True, False)):
        b = s.declare_parameter((int(inner_dim), s.pick((1, 2, 3))))
        fits = [(b, (False, False), inner_dim)]
    if not fits:
        return None
    b, (flip_a, flip_b), inner = s.pick(fits)
    bound = s.size_of((inner,)) * a.bound * b.bound
    attrs = {"transpose_a": True} if flip_a else {}
    attrs |= {"transpose_b": True} if flip_b else {}
    return s.add_op("matmul", [a, b], bound=bound, **attrs)


def _flip(shape: Shape, flip: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if flip else shape


def einsum(s: Sketch) -> Value | None:
    a = s.pick(
        s.sources(lambda v: v.shape[:1] == (BATCH,) and v.shape.count(BATCH) < 2)
    )
    rank = len(a.shape)
    term = "bijkl"[:rank]
    alike = s.sources(lambda v: v.shape == a.shape)
    rows = s.sources(is_rows)
    b = s.pick(alike)
    equations = [(f"{term},{term}->{r}", b) for r in ("b", "", term[1:], term)]
    equations.append((f"{term},bz->{term}z", s.pick(rows)))
    equations.append((f"{term},bz->{term[1:]}z", s.pick(rows)))
    equations.append((f"{term},c{term[1:]}->bc", b))
    if rank > 1:
        w = s.declare_parameter((int(a.shape[-1]), 2))
        equations = [(f"{term},{term[-1]}z->{term[:-1]}z", w), *equations]
    equation, b = s.pick(equations)
    size = s.size_of(a.shape)
    return s.add_op("einsum", [a, b], bound=size * a.bound * b.bound, equation=equation)


def binary(s: Sketch) -> Value | None:
    """add, sub or mul of two values that broadcast, including partial scalars."""
    a = s.pick(s.sources())
    kind = s.pick(("add", "sub", "mul"))
    others = [b for b in s.sources() if broadcast(a.shape, b.shape) is not None]
    if kind == "sub":  # x - x is 0, where relu has no derivative
        others = [b for b in others if b.name != a.name]
    parameters = {
        n: shape
        for n, shape in s.trainable_shapes().items()
        if broadcast(a.shape, shape) is not None
    }
    if parameters and s.pick((True, False, False)):
        name = s.pick(parameters)
        others = [Value(name, TensorType("float32", parameters[name]))]
    elif s.pick((True, False, False)):
        others = [s.declare_parameter(s.pick(((), (1,))))]
    if not others:
        return None
    b = s.pick(others)
    if s.pick((True, False)):
        a, b = b, a
    bound = a.bound * b.bound if kind == "mul" else a.bound + b.bound
    return s.add_op(kind, [a, b], bound=bound)


def positive(s: Sketch, x: Value) -> Value:
    """Return a value of the same shape with elements between 0.2 and 1.2."""
    return s.add_op("scale", [s.add_op("tanh", [x])], bound=1.2, factor=0.5, bias=0.7)


def div(s: Sketch) -> Value | None:
    below = positive(s, s.pick(s.sources()))
    fits = s.sources(lambda v: broadcast(v.shape, below.shape) is not None)
    above = s.pick(fits)
    return s.add_op("div", [above, below], bound=above.bound * 5)


def power(s: Sketch) -> Value | None:
    x = positive(s, s.pick(s.sources()))
    chosen = s.pick(
        (
            {"kind": "sqrt", "bound": 1.1},
            {"kind": "log", "bound": 1.7},
            {"kind": "exp", "bound": 3.4},
            {"kind": "pow", "exponent": 1.5, "bound": 1.4},
            {"kind": "pow", "exponent": -0.5, "bound": 2.3},
        )
    )
    how: dict[str, Any] = dict(chosen)
    return s.add_op(how.pop("kind"), [x], **how)


def unary(s: Sketch) -> Value | None:
    x = s.pick(s.sources())
    kind, attrs, bound = s.pick(
        (
            ("scale", {"factor": 0.5}, 0.5 * x.bound),
            ("scale", {"factor": -1.5}, 1.5 * x.bound),
            ("scale", {"factor": 0.5, "bias": 0.25}, 0.5 * x.bound + 0.25),
            ("negative", {}, x.bound),
            ("square", {}, x.bound**2),
            ("pow", {"exponent": 3.0}, x.bound**3),
            ("stop_gradient", {}, x.bound),
        )
    )
    keeps = x.separated and kind in ("scale", "negative")
    return s.add_op(kind, [x], bound=bound, separated=keeps, **attrs)


def activation(s: Sketch) -> Value | None:
    x = s.pick(s.sources())
    kind, attrs = s.pick(
        (
            ("relu", {}),
            ("tanh", {}),
            ("sigmoid", {}),
            ("gelu", {}),
            ("gelu", {"approximate": True}),
            ("silu", {}),
            ("softplus", {}),
            ("elu", {}),
        )
    )
    bound = 1.0 if kind in ("tanh", "sigmoid") else x.bound + 1
    smooth = kind not in ("relu", "elu")
    return s.add_op(kind, [x], bound=bound, separated=x.separated and smooth, **attrs)


def nonsmooth(s: Sketch) -> Value | None:
    x = separated_like(s, s.pick(s.sources()))
    if x is None:
        return None
    kind, attrs = s.pick(
        (
            ("abs", {}),
            ("leaky_relu", {"negative_slope": 0.2}),
            ("elu", {"alpha": 0.4}),
            ("clip", {"min": -0.3}),
            ("clip", {"min": -0.5, "max": 0.4}),
        )
    )
    return s.add_op(kind, [x], bound=x.bound, **attrs)


def _separated_pair(s: Sketch) -> list[Value] | None:
    """Return two values whose elements are separated from each other."""
    a = separated_like(s, s.pick(s.sources(has_width)))
    return a and [a, fc(s, a, s.pick((1, int(a.shape[-1]))), "tanh")]


def extreme(s: Sketch) -> Value | None:
    two = _separated_pair(s)
    if two is None:
        return None
    bound = max(v.bound for v in two)
    return s.add_op(s.pick(("maximum", "minimum")), two, bound=bound)


def choice(s: Sketch) -> Value | None:
    """Choose between two values by a comparison or by an integer input."""
    a = s.pick(s.sources())
    how = s.pick(("values", "ids", "given", "cast"))
    if how == "given":
        condition = Value("click", INPUTS["click"])
    elif how == "ids":
        both = [Value(n, INPUTS[n]) for n in ("ids", "label")]
        condition = s.add_op(s.pick(("equal", "less")), both)
    else:
        two = _separated_pair(s)
        if two is None:
            return None
        condition = s.add_op(s.pick(("greater", "less")), two)
    if how == "cast":
        return s.add_op("cast", [condition], dtype="float32")
    fits = [
        v
        for v in s.sources()
        if (shape := broadcast(a.shape, v.shape)) is not None
        and broadcast(shape, condition.shape) is not None
    ]
    if not fits:
        return None
    b = s.pick(fits)
    return s.add_op("where", [condition, a, b], bound=max(a.bound, b.bound))


def softmax(s: Sketch) -> Value | None:
    x = s.pick([v for v in s.values if v.shape] or s.sources(lambda v: v.shape != ()))
    axis = s.pick(range(-len(x.shape), len(x.shape)))
    kind = s.pick(("softmax", "softmax", "log_softmax"))
    bound = 1.0 if kind == "softmax" else 2 * x.bound + 3
    return s.add_op(kind, [x], bound=bound, axis=axis)


def row_attention(s: Sketch) -> Value | None:
    """Attention of each row to all rows of the batch."""
    x = fc(s, s.pick(s.sources(is_rows)), 0, "tanh")
    width = int(x.shape[1])
    scores = s.add_op("matmul", [x, x], bound=width * x.bound**2, transpose_b=True)
    weights = s.add_op("softmax", [scores], axis=s.pick((0, -1)))
    if s.pick((True, False)):
        return weights
    return s.add_op("matmul", [weights, x], bound=x.bound * s.cluster.batch)


def reshape(s: Sketch) -> Value | None:
    x = s.pick(s.sources())
    known = [int(d) for d in x.shape if d != BATCH]
    count, rows = prod(known), [BATCH] * x.shape.count(BATCH)
    shapes: list[list[Any]] = []
    if len(rows) < 2:
        shapes = [[*rows, count], [count, *rows], [*rows, 1, count], [1, *rows, count]]
        if count == 1:
            shapes.append(rows)
        if count % 2 == 0:
            shapes += [[*rows, 2, count // 2], [2, *rows, count // 2]]
        if x.shape[:1] == (BATCH,):
            shapes.append([BATCH, 1, -1])
    if not shapes:
        return None
    return s.add_op(
        "reshape", [x], bound=x.bound, separated=x.separated, shape=s.pick(shapes)
    )


def rearrange(s: Sketch) -> Value | None:
    """Transpose, flatten, and add or remove dimensions."""
    x = s.pick(s.sources(lambda v: len(v.shape) > 0))
    rank = len(x.shape)
    ones = [i for i, d in enumerate(x.shape) if d == 1]
    if not ones and s.pick((True, False, False)):
        expanded = s.add_op(
            "expand_dims", [x], bound=x.bound, separated=x.separated, axis=rank
        )
        squeeze_attrs = {
            "bound": x.bound,
            "separated": x.separated,
            "axis": s.pick((-1, [rank])),
        }
        return s.add_op("squeeze", [expanded], **squeeze_attrs)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("transpose", {}),
        ("expand_dims", {"axis": s.pick(range(-rank - 1, rank + 1))}),
    ]
    if rank > 2:
        ways.append(("transpose", {"perm": [0, *range(rank - 1, 0, -1)]}))
    if x.shape.count(BATCH) < 2:
        ways.append(("flatten", {}))
    if ones:
        ways.append(("squeeze", {"axis": s.pick((ones[0], ones))}))
    kind, attrs = s.pick(ways)
    if kind == "flatten" and (rank == 1 or x.shape[0] != BATCH):
        attrs = {"axis": rank}
    return s.add_op(kind, [x], bound=x.bound, separated=x.separated, **attrs)


def resize(s: Sketch) -> Value | None:
    """Make a dimension longer or shorter, or accumulate along it."""
    x = s.pick(s.sources(lambda v: any(d not in (BATCH, 1) for d in v.shape)))
    axis = s.pick([i for i, d in enumerate(x.shape) if d not in (BATCH, 1)])
    size, rank = int(x.shape[axis]), len(x.shape)
    kind = s.pick(("slice", "split", "pad", "pad", "tile", "cumsum", "cumsum"))
    if kind == "slice":
        how = s.pick(({"start": 1}, {"stop": -1}, {"step": -1}, {"step": 2}))
        return s.add_op(
            "slice", [x], bound=x.bound, separated=x.separated, axis=axis, **how
        )
    if kind == "split":
        sections: Any = s.pick((size, [1, size - 1]))
        parts = s.add_multi_result_op(
            "split",
            [x],
            bound=x.bound,
            separated=x.separated,
            sections=sections,
            axis=axis,
        )
        return s.pick(parts) if parts else None
    if kind == "pad":
        pads = [[1, 0] if i == axis else [0, 0] for i in range(rank)]
        mode = s.pick(("constant", "edge", "reflect"))
        return s.add_op("pad", [x], bound=x.bound, paddings=pads, mode=mode)
    if kind == "tile":
        times = [2 if i == axis else 1 for i in range(rank)]
        return s.add_op("tile", [x], bound=x.bound, repeats=times)
    along = s.pick((axis, axis, 0))
    bound = x.bound * s.size_of((x.shape[along],))
    how = {"reverse": s.pick((True, False)), "exclusive": s.pick((True, False))}
    return s.add_op("cumsum", [x], bound=bound, axis=along, **how)


def concat(s: Sketch) -> Value | None:
    a = s.pick(s.sources(lambda v: len(v.shape) > 0))
    axes = [i for i, d in enumerate(a.shape) if d != BATCH]
    if not axes:
        return None
    axis = s.pick(axes)
    fits = s.sources(
        lambda v: (
            len(v.shape) == len(a.shape)
            and v.shape[axis] != BATCH
            and _without(v.shape, axis) == _without(a.shape, axis)
        )
    )
    others = [s.pick(fits) for _ in range(s.pick((1, 1, 2)))]
    bound = max(v.bound for v in (a, *others))
    return s.add_op("concat", [a, *others], bound=bound, axis=axis)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def reduction(s: Sketch) -> Value | None:
    x = s.pick(s.sources(lambda v: len(v.shape) > 0))
    kind = s.pick(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"))
    if kind in ("reduce_max", "reduce_min"):
        separated_x = separated_like(s, x)
        if separated_x is None:
            return None
        x = separated_x
    rank = len(x.shape)
    axis = s.pick([None, 0, -1, *([[0, rank - 1]] if rank > 1 else [])])
    reduced = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    reduced = {a % rank for a in reduced}
    size = s.size_of(tuple(d for i, d in enumerate(x.shape) if i in reduced))
    bound = x.bound * size if kind == "reduce_sum" else x.bound
    attrs: dict[str, Any] = {} if axis is None else {"axis": axis}
    if s.pick((False, True)):
        attrs["keepdims"] = True
    return s.add_op(kind, [x], bound=bound, **attrs)


def order(s: Sketch) -> Value | None:
    """The largest elements, their positions, and other elements at these positions."""
    x = s.pick(s.sources(lambda v: has_width(v) and v.shape.count(BATCH) < 2))
    x = separated_like(s, x)
    if x is None or x.shape[-1] == BATCH:
        return None
    kind_of_use = s.pick(("top_k", "take_along_axis", "argmax", "gather"))
    if kind_of_use in ("top_k", "take_along_axis"):
        k = s.pick(range(1, int(x.shape[-1]) + 1))
        results = s.add_multi_result_op("top_k", [x], bound=x.bound, k=k)
        if kind_of_use == "top_k" or len(results) < 2:
            return results[0]
        y = s.pick(s.sources(lambda v: v.shape == x.shape))
        return s.add_op("take_along_axis", [y, results[1]], bound=y.bound)
    kind = s.pick(("argmax", "argmin"))
    if kind_of_use == "argmax":
        which = s.add_op(kind, [x])
        return s.add_op("one_hot", [which], classes=int(x.shape[-1]))
    rows = s.add_op(kind, [x], axis=0)
    fits = s.sources(lambda v: v.shape[:1] == (BATCH,) and v.shape.count(BATCH) < 2)
    return s.add_op("gather", [y := s.pick(fits), rows], bound=y.bound)


def lookup(s: Sketch) -> Value | None:
    """Rows of a parameter selected by integer inputs, or the integers as vectors."""
    name = s.pick(("ids", "pairs"))
    ids = Value(name, INPUTS[name])
    if s.pick((True, False)):
        return s.add_op("one_hot", [ids], classes=CLASSES)
    table = s.declare_parameter((VOCABULARY, 2))
    return s.add_op("gather", [table, ids])


def constant(s: Sketch) -> Value | None:
    shape = s.pick(((), (1,), (3,)))
    return s.add_op("constant", [], bound=0.5, value=0.5, shape=list(shape))


VALUES = (
    *(matmul,) * 2, *(einsum,) * 2, *(binary,) * 3, div, *(power,) * 3, *(unary,) * 4,
    *(activation,) * 5, *(nonsmooth,) * 3, *(extreme,) * 2, *(choice,) * 3, *(softmax,) * 2,
    row_attention, reshape, *(rearrange,) * 4, *(resize,) * 4, concat, *(reduction,) * 4,
    *(order,) * 4, lookup, constant,
)  # fmt: skip
