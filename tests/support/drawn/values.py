"""Drawn ops without parameters: arithmetic, shapes, choices, reductions, products.

One function for each kind, or for several alike; each gives a value, or None where it
finds nothing. What depends on an order or a sign takes values that are apart.
"""

from __future__ import annotations

from math import prod
from typing import Any

from placer.types import BATCH, TensorType
from support.drawn.layers import fc, spread
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
    wanted = a.shape[-1]
    if wanted != BATCH and s.pick((True, False)):
        b = s.declared((int(wanted), s.pick((1, 2, 3))))
        fits = [(b, (False, False), wanted)]
    if not fits:
        return None
    b, (flip_a, flip_b), inner = s.pick(fits)
    bound = s.rows((inner,)) * a.bound * b.bound
    attrs = {"transpose_a": True} if flip_a else {}
    attrs |= {"transpose_b": True} if flip_b else {}
    return s.op("matmul", [a, b], bound=bound, **attrs)


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
        w = s.declared((int(a.shape[-1]), 2))
        equations = [(f"{term},{term[-1]}z->{term[:-1]}z", w), *equations]
    equation, b = s.pick(equations)
    size = s.rows(a.shape)
    return s.op("einsum", [a, b], bound=size * a.bound * b.bound, equation=equation)


def pair(s: Sketch) -> Value | None:
    """add, sub, mul: of two values that broadcast, P scalars among them."""
    a = s.pick(s.sources())
    kind = s.pick(("add", "sub", "mul"))
    others = [b for b in s.sources() if broadcast(a.shape, b.shape) is not None]
    if kind == "sub":  # x - x is 0, where relu has no derivative
        others = [b for b in others if b.name != a.name]
    made = {
        n: shape
        for n, shape in s.trained().items()
        if broadcast(a.shape, shape) is not None
    }
    if made and s.pick((True, False, False)):
        name = s.pick(made)
        others = [Value(name, TensorType("float32", made[name]))]
    elif s.pick((True, False, False)):
        others = [s.declared(s.pick(((), (1,))))]
    if not others:
        return None
    b = s.pick(others)
    if s.pick((True, False)):
        a, b = b, a
    bound = a.bound * b.bound if kind == "mul" else a.bound + b.bound
    return s.op(kind, [a, b], bound=bound)


def positive(s: Sketch, x: Value) -> Value:
    """A value of the same shape between 0.2 and 1.2."""
    return s.op("scale", [s.op("tanh", [x])], bound=1.2, factor=0.5, bias=0.7)


def div(s: Sketch) -> Value | None:
    below = positive(s, s.pick(s.sources()))
    fits = s.sources(lambda v: broadcast(v.shape, below.shape) is not None)
    above = s.pick(fits)
    return s.op("div", [above, below], bound=above.bound * 5)


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
    return s.op(how.pop("kind"), [x], **how)


def single(s: Sketch) -> Value | None:
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
    keeps = x.apart and kind in ("scale", "negative")
    return s.op(kind, [x], bound=bound, apart=keeps, **attrs)


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
    return s.op(kind, [x], bound=bound, apart=x.apart and smooth, **attrs)


def kinked(s: Sketch) -> Value | None:
    x = spread(s, s.pick(s.sources()))
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
    return s.op(kind, [x], bound=x.bound, **attrs)


def _unlike(s: Sketch) -> list[Value] | None:
    """Two values whose elements are apart from each other's."""
    a = spread(s, s.pick(s.sources(has_width)))
    return a and [a, fc(s, a, s.pick((1, int(a.shape[-1]))), "tanh")]


def extreme(s: Sketch) -> Value | None:
    two = _unlike(s)
    if two is None:
        return None
    bound = max(v.bound for v in two)
    return s.op(s.pick(("maximum", "minimum")), two, bound=bound)


def choice(s: Sketch) -> Value | None:
    """One value or another, by a comparison or by a number that was read."""
    a = s.pick(s.sources())
    how = s.pick(("values", "ids", "given", "cast"))
    if how == "given":
        condition = Value("click", INPUTS["click"])
    elif how == "ids":
        both = [Value(n, INPUTS[n]) for n in ("ids", "label")]
        condition = s.op(s.pick(("equal", "less")), both)
    else:
        two = _unlike(s)
        if two is None:
            return None
        condition = s.op(s.pick(("greater", "less")), two)
    if how == "cast":
        return s.op("cast", [condition], dtype="float32")
    fits = [
        v
        for v in s.sources()
        if (shape := broadcast(a.shape, v.shape)) is not None
        and broadcast(shape, condition.shape) is not None
    ]
    if not fits:
        return None
    b = s.pick(fits)
    return s.op("where", [condition, a, b], bound=max(a.bound, b.bound))


def softmax(s: Sketch) -> Value | None:
    x = s.pick([v for v in s.values if v.shape] or s.sources(lambda v: v.shape != ()))
    axis = s.pick(range(-len(x.shape), len(x.shape)))
    kind = s.pick(("softmax", "softmax", "log_softmax"))
    bound = 1.0 if kind == "softmax" else 2 * x.bound + 3
    return s.op(kind, [x], bound=bound, axis=axis)


def looking(s: Sketch) -> Value | None:
    """Rows that look at all other rows of the batch."""
    x = fc(s, s.pick(s.sources(is_rows)), 0, "tanh")
    width = int(x.shape[1])
    scores = s.op("matmul", [x, x], bound=width * x.bound**2, transpose_b=True)
    weights = s.op("softmax", [scores], axis=s.pick((0, -1)))
    if s.pick((True, False)):
        return weights
    return s.op("matmul", [weights, x], bound=x.bound * s.cluster.batch)


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
    return s.op("reshape", [x], bound=x.bound, apart=x.apart, shape=s.pick(shapes))


def moved(s: Sketch) -> Value | None:
    """Dimensions in another order, fewer of them, more of them."""
    x = s.pick(s.sources(lambda v: len(v.shape) > 0))
    rank = len(x.shape)
    ones = [i for i, d in enumerate(x.shape) if d == 1]
    if not ones and s.pick((True, False, False)):
        made = s.op("expand_dims", [x], bound=x.bound, apart=x.apart, axis=rank)
        gone = {"bound": x.bound, "apart": x.apart, "axis": s.pick((-1, [rank]))}
        return s.op("squeeze", [made], **gone)
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
    return s.op(kind, [x], bound=x.bound, apart=x.apart, **attrs)


def cut(s: Sketch) -> Value | None:
    """More or less of what a dimension has."""
    x = s.pick(s.sources(lambda v: any(d not in (BATCH, 1) for d in v.shape)))
    axis = s.pick([i for i, d in enumerate(x.shape) if d not in (BATCH, 1)])
    size, rank = int(x.shape[axis]), len(x.shape)
    kind = s.pick(("slice", "split", "pad", "pad", "tile", "cumsum", "cumsum"))
    if kind == "slice":
        how = s.pick(({"start": 1}, {"stop": -1}, {"step": -1}, {"step": 2}))
        return s.op("slice", [x], bound=x.bound, apart=x.apart, axis=axis, **how)
    if kind == "split":
        sections: Any = s.pick((size, [1, size - 1]))
        parts = s.several(
            "split", [x], bound=x.bound, apart=x.apart, sections=sections, axis=axis
        )
        return s.pick(parts) if parts else None
    if kind == "pad":
        pads = [[1, 0] if i == axis else [0, 0] for i in range(rank)]
        mode = s.pick(("constant", "edge", "reflect"))
        return s.op("pad", [x], bound=x.bound, paddings=pads, mode=mode)
    if kind == "tile":
        times = [2 if i == axis else 1 for i in range(rank)]
        return s.op("tile", [x], bound=x.bound, repeats=times)
    along = s.pick((axis, axis, 0))
    bound = x.bound * s.rows((x.shape[along],))
    how = {"reverse": s.pick((True, False)), "exclusive": s.pick((True, False))}
    return s.op("cumsum", [x], bound=bound, axis=along, **how)


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
    return s.op("concat", [a, *others], bound=bound, axis=axis)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def reduction(s: Sketch) -> Value | None:
    x = s.pick(s.sources(lambda v: len(v.shape) > 0))
    kind = s.pick(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"))
    if kind in ("reduce_max", "reduce_min"):
        made = spread(s, x)
        if made is None:
            return None
        x = made
    rank = len(x.shape)
    axis = s.pick([None, 0, -1, *([[0, rank - 1]] if rank > 1 else [])])
    gone = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    gone = {a % rank for a in gone}
    size = s.rows(tuple(d for i, d in enumerate(x.shape) if i in gone))
    bound = x.bound * size if kind == "reduce_sum" else x.bound
    attrs: dict[str, Any] = {} if axis is None else {"axis": axis}
    if s.pick((False, True)):
        attrs["keepdims"] = True
    return s.op(kind, [x], bound=bound, **attrs)


def ranked(s: Sketch) -> Value | None:
    """The largest elements, where they stand, and others that stand there."""
    x = s.pick(s.sources(lambda v: has_width(v) and v.shape.count(BATCH) < 2))
    x = spread(s, x)
    if x is None or x.shape[-1] == BATCH:
        return None
    how = s.pick(("top_k", "take_along_axis", "argmax", "gather"))
    if how in ("top_k", "take_along_axis"):
        k = s.pick(range(1, int(x.shape[-1]) + 1))
        found = s.several("top_k", [x], bound=x.bound, k=k)
        if how == "top_k" or len(found) < 2:
            return found[0]
        y = s.pick(s.sources(lambda v: v.shape == x.shape))
        return s.op("take_along_axis", [y, found[1]], bound=y.bound)
    kind = s.pick(("argmax", "argmin"))
    if how == "argmax":
        which = s.op(kind, [x])
        return s.op("one_hot", [which], classes=int(x.shape[-1]))
    rows = s.op(kind, [x], axis=0)
    fits = s.sources(lambda v: v.shape[:1] == (BATCH,) and v.shape.count(BATCH) < 2)
    return s.op("gather", [y := s.pick(fits), rows], bound=y.bound)


def looked_up(s: Sketch) -> Value | None:
    """Rows of a parameter by numbers that were read; or the numbers as vectors."""
    name = s.pick(("ids", "pairs"))
    ids = Value(name, INPUTS[name])
    if s.pick((True, False)):
        return s.op("one_hot", [ids], classes=CLASSES)
    table = s.declared((VOCABULARY, 2))
    return s.op("gather", [table, ids])


def constant(s: Sketch) -> Value | None:
    shape = s.pick(((), (1,), (3,)))
    return s.op("constant", [], bound=0.5, value=0.5, shape=list(shape))


VALUES = (
    *(matmul,) * 2, *(einsum,) * 2, *(pair,) * 3, div, *(power,) * 3, *(single,) * 4,
    *(activation,) * 5, *(kinked,) * 3, *(extreme,) * 2, *(choice,) * 3, *(softmax,) * 2,
    looking, reshape, *(moved,) * 4, *(cut,) * 4, concat, *(reduction,) * 4,
    *(ranked,) * 4, looked_up, constant,
)  # fmt: skip
