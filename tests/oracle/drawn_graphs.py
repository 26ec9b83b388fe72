"""Drawn models: graphs of every op, placed in every legal way, and how to train them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from drawn_clusters import Hosts, Layout, clusters, may_go, places_of_ops
from drawn_training import training
from hypothesis import strategies as st

Shape = tuple[int | str, ...]
BATCH = "batch"
INPUTS: dict[str, tuple[str, Shape]] = {
    "x": ("float32", (BATCH, 3)),
    "z": ("float32", (BATCH, 2, 3)),
    "v": ("float32", (BATCH,)),
    "y": ("float32", (BATCH,)),
    "ids": ("int32", (BATCH,)),
    "pairs": ("int64", (BATCH, 2)),
    "label": ("int32", (BATCH,)),
    "click": ("int32", (BATCH,)),
}
VOCABULARY = 6
CLASSES = 4


@dataclass(frozen=True)
class Drawn:
    """A model: its spec, and what feeds it."""

    spec: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    train_rows: int
    eval_rows: int
    seed: int

    def rows(self, which: str) -> dict[str, np.ndarray]:
        """A column for every input, drawn from the model's seed."""
        count = self.train_rows if which == "train" else self.eval_rows
        random = np.random.default_rng([self.seed, which == "train"])
        columns = {}
        for name, (dtype, shape) in INPUTS.items():
            sizes = (count, *shape[1:])
            top = {"label": CLASSES, "click": 2}.get(name, VOCABULARY)
            if dtype == "float32":
                columns[name] = random.uniform(-1, 1, sizes)
            else:
                columns[name] = random.integers(0, top, sizes).astype(dtype)
        return {name: columns[name] for name in self.spec["inputs"]}

    def initial(self) -> dict[str, np.ndarray]:
        """Values for all parameters."""
        random = np.random.default_rng([self.seed, 2])
        return {
            name: np.asarray(random.uniform(-0.7, 0.7, shape))
            for name, shape in self.shapes.items()
        }


@dataclass
class Value:
    """A float value: its shape, where it stands (None: it goes anywhere), and a bound
    that keeps products from running away."""

    name: str
    shape: Shape
    hosts: Hosts | None
    bound: float


@dataclass
class Sketch:
    """A graph that is being drawn."""

    draw: Any
    cluster: Layout
    block: bool
    ops: list[dict[str, Any]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    kind_of: dict[str, str] = field(default_factory=dict)

    def pick(self, choices: Iterable[Any]) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def rows(self, shape: Shape) -> int:
        return prod(self.cluster.batch if d == BATCH else int(d) for d in shape)

    def input(self, name: str) -> Value:
        _, shape = INPUTS[name]
        return Value(name, shape, None, 1.0)

    def sources(self, fits: Callable[[Value], bool] = lambda v: True) -> list[Value]:
        """Float values that an op may take: inputs, and results so far, which stand
        there several times so that most ops are on a way to the loss."""
        inputs = [self.input(n) for n, (t, _) in INPUTS.items() if t == "float32"]
        values = [v for v in self.values if v.name not in self.used]
        return [v for v in (*inputs, *self.values, *values, *values) if fits(v)]

    def parameter(self, name: str, shape: tuple[int, ...]) -> Value:
        self.shapes[name] = shape
        return Value(name, shape, None, 1.0)

    def declared(self, shape: tuple[int, ...]) -> Value:
        """A parameter that no layer makes."""
        name = f"p{len(self.ops)}"
        entry = {"name": name, "op": "parameter", "shape": list(shape)}
        self.ops.append({**entry, "init": "zeros"})
        return self.parameter(name, shape)

    def place(self, operands: list[Value], parameters: list[str]) -> Any:
        """A place for an op: legal for what it takes. Its text, or None, and hosts."""
        given = [v.hosts for v in operands if v.hosts is not None]
        near = given[0] if given and not self.block else self.cluster.everywhere
        everywhere = (
            self.pick(("/node:worker", "/node:worker/cpu", "/node:worker:*")),
        )
        choices: list[tuple[str | None, Hosts]] = [(None, near)] * 4
        choices += [(text, self.cluster.everywhere) for text in everywhere * 3]
        choices += places_of_ops(self.cluster).items()
        legal = [
            (text, hosts)
            for text, hosts in choices
            if all(may_go(source, hosts) for source in given)
            and all(
                self.kind_of.get(p, hosts[0].split(":")[0]) == hosts[0].split(":")[0]
                for p in parameters
            )
        ]
        text, hosts = self.pick(legal) if legal else (None, None)
        return text, hosts

    def op(
        self,
        kind: str,
        operands: list[Value],
        shape: Shape,
        bound: float,
        shared: dict[str, str] | None = None,
        own: dict[str, tuple[int, ...]] | None = None,
        /,
        **attrs: Any,
    ) -> Value | None:
        """Add an op; None when no place is legal for it."""
        name = f"h{len(self.ops)}"
        parameters = [v.name for v in operands if v.name in self.shapes]
        parameters += (shared or {}).values()
        text, hosts = self.place(operands, parameters)
        if hosts is None:
            return None
        for parameter in (*parameters, *(f"{name}.{o}" for o in own or {})):
            self.kind_of[parameter] = hosts[0].split(":")[0]
        for operand, size in (own or {}).items():
            self.parameter(f"{name}.{operand}", size)
        entry: dict[str, Any] = {"name": name, "op": kind}
        if operands:
            names = [v.name for v in operands]
            entry["in"] = names[0] if len(names) == 1 else names
        entry |= attrs
        if shared:
            entry["params"] = shared
        if text is not None:
            entry["place"] = text
        self.ops.append(entry)
        self.used |= {v.name for v in operands}
        value = Value(name, shape, hosts, bound)
        if bound > 8:
            smaller = self.op("scale", [value], shape, 2.0, factor=2.0 / bound)
            assert smaller is not None
            return smaller
        self.values.append(value)
        return value


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape of two values put together, if they fit."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    found = []
    for m, n in zip(left, right, strict=True):
        if m != n and 1 not in (m, n):
            return None
        found.append(n if m == 1 else m)
    return tuple(found)


# One function for each kind of op; each gives a value, or None where it finds nothing.


def fc(s: Sketch, x: Value | None = None, size: int = 0, act: str = "") -> Value | None:
    x = x or s.pick(s.sources(_has_width))
    width = int(x.shape[-1])
    size = size or s.pick((1, 2, 3, 4))
    act = act or s.pick(("none", "relu", "tanh", "sigmoid", "softmax"))
    bias = s.pick((True, True, False))
    same = [n for n, shape in s.shapes.items() if shape == (width, size)]
    flipped = [n for n, shape in s.shapes.items() if shape == (size, width)]
    bound = 1.0 if act in ("tanh", "sigmoid", "softmax") else width * x.bound + 1
    attrs: dict[str, Any] = {"size": size, "activation": act, "bias": bias}
    own = {"b": (size,)} if bias else {}
    shape = (*x.shape[:-1], size)
    how = s.pick(("own", "own", "shared"))
    if how == "shared" and (same or flipped):
        chosen = s.pick([*same, *flipped])
        if chosen in flipped and (chosen not in same or s.pick((True, False))):
            attrs["transpose_w"] = True
        return s.op("fc", [x], shape, bound, {"w": chosen}, own, **attrs)
    return s.op("fc", [x], shape, bound, {}, {"w": (width, size), **own}, **attrs)


def _is_rows(v: Value) -> bool:
    return len(v.shape) == 2 and v.shape[0] == BATCH != v.shape[1]


def _has_width(v: Value) -> bool:
    return len(v.shape) >= 2 and v.shape[-1] != BATCH


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
                fits.append((b, flips, (*leading, left[-2], right[-1]), left[-1]))
    wanted = a.shape[-1]
    if wanted != BATCH and s.pick((True, False)):
        b = s.declared((int(wanted), s.pick((1, 2, 3))))
        fits = [(b, (False, False), (*a.shape[:-1], b.shape[1]), wanted)]
    if not fits:
        return None
    b, (flip_a, flip_b), shape, inner = s.pick(fits)
    bound = s.rows((inner,)) * a.bound * b.bound
    attrs = {"transpose_a": True} if flip_a else {}
    attrs |= {"transpose_b": True} if flip_b else {}
    return s.op("matmul", [a, b], shape, bound, **attrs)


def _flip(shape: Shape, flip: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if flip else shape


def pair(s: Sketch) -> Value | None:
    """add, sub, mul: of two values that broadcast, P scalars among them."""
    a = s.pick(s.sources())
    kind = s.pick(("add", "sub", "mul"))
    others = [b for b in s.sources() if broadcast(a.shape, b.shape) is not None]
    if kind == "sub":  # x - x is 0, where relu has no derivative
        others = [b for b in others if b.name != a.name]
    made = [n for n, shape in s.shapes.items() if broadcast(a.shape, shape) is not None]
    if made and s.pick((True, False, False)):
        name = s.pick(made)
        others = [Value(name, s.shapes[name], None, 1.0)]
    elif s.pick((True, False, False)):
        others = [s.declared(s.pick(((), (1,))))]
    if not others:
        return None
    b = s.pick(others)
    if s.pick((True, False)):
        a, b = b, a
    shape = broadcast(a.shape, b.shape)
    assert shape is not None
    bound = a.bound * b.bound if kind == "mul" else a.bound + b.bound
    return s.op(kind, [a, b], shape, bound)


def _positive(s: Sketch, x: Value) -> Value | None:
    """A value of the same shape between 0.2 and 1.2."""
    flat = s.op("tanh", [x], x.shape, 1.0)
    return flat and s.op("scale", [flat], x.shape, 1.2, factor=0.5, bias=0.7)


def div(s: Sketch) -> Value | None:
    below = _positive(s, s.pick(s.sources()))
    if below is None:
        return None
    fits = s.sources(lambda v: broadcast(v.shape, below.shape) is not None)
    above = s.pick(fits)
    shape = broadcast(above.shape, below.shape)
    assert shape is not None
    return s.op("div", [above, below], shape, above.bound * 5)


def sqrt(s: Sketch) -> Value | None:
    x = _positive(s, s.pick(s.sources()))
    return x and s.op("sqrt", [x], x.shape, 1.1)


def scale(s: Sketch) -> Value | None:
    x = s.pick(s.sources())
    attrs = s.pick(({"factor": 0.5}, {"factor": -1.5}, {"factor": 0.5, "bias": 0.25}))
    return s.op("scale", [x], x.shape, 1.5 * x.bound + 0.25, **attrs)


def activation(s: Sketch) -> Value | None:
    x = s.pick(s.sources())
    kind = s.pick(("relu", "tanh", "sigmoid"))
    return s.op(kind, [x], x.shape, x.bound if kind == "relu" else 1.0)


def softmax(s: Sketch) -> Value | None:
    x = s.pick([v for v in s.values if v.shape] or s.sources(lambda v: v.shape != ()))
    axis = s.pick(range(-len(x.shape), len(x.shape)))
    return s.op("softmax", [x], x.shape, 1.0, axis=axis)


def attention(s: Sketch) -> Value | None:
    """Rows that look at all other rows of the batch."""
    x = fc(s, s.pick(s.sources(_is_rows)))
    if x is None:
        return None
    all_pairs = (BATCH, BATCH)
    width = int(x.shape[1])
    scores = s.op("matmul", [x, x], all_pairs, width * x.bound**2, transpose_b=True)
    if scores is None:
        return None
    axis = s.pick((0, -1))
    weights = s.op("softmax", [scores], all_pairs, 1.0, axis=axis)
    if weights is None or s.pick((True, False)):
        return weights
    return s.op("matmul", [weights, x], x.shape, x.bound * s.cluster.batch)


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
    shape = s.pick(shapes)
    result = tuple(count if d == -1 else d for d in shape)
    return s.op("reshape", [x], result, x.bound, shape=shape)


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
    width = sum(int(v.shape[axis]) for v in (a, *others))
    shape = (*a.shape[:axis], width, *a.shape[axis + 1 :])
    return s.op(
        "concat", [a, *others], shape, max(v.bound for v in (a, *others)), axis=axis
    )


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def reduction(s: Sketch) -> Value | None:
    x = s.pick(s.sources(lambda v: len(v.shape) > 0))
    kind = s.pick(("reduce_sum", "reduce_mean"))
    rank = len(x.shape)
    axis = s.pick([None, 0, -1, *([[0, rank - 1]] if rank > 1 else [])])
    keep = s.pick((False, True))
    gone = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    gone = {a % rank for a in gone}
    shape = tuple(
        1 if i in gone else d for i, d in enumerate(x.shape) if keep or i not in gone
    )
    size = s.rows(tuple(d for i, d in enumerate(x.shape) if i in gone))
    bound = x.bound * size if kind == "reduce_sum" else x.bound
    attrs: dict[str, Any] = {} if axis is None else {"axis": axis}
    if keep:
        attrs["keepdims"] = True
    return s.op(kind, [x], shape, bound, **attrs)


def embedding(s: Sketch) -> Value | None:
    ids = s.input(s.pick(("ids", "pairs")))
    tables = [n for n, shape in s.shapes.items() if shape[:1] == (VOCABULARY,)]
    tables = [n for n in tables if len(s.shapes[n]) == 2]
    if tables and s.pick((True, False)):
        table = s.pick(tables)
        width = s.shapes[table][1]
        shared, own = {"table": table}, {}
    else:
        width = s.pick((2, 3))
        shared, own = {}, {"table": (VOCABULARY, width)}
    size = [VOCABULARY, width]
    return s.op("embedding", [ids], (*ids.shape, width), 1.0, shared, own, size=size)


def constant(s: Sketch) -> Value | None:
    shape = s.pick(((), (1,), (3,)))
    return s.op("constant", [], shape, 0.5, value=0.5, shape=list(shape))


def loss_of_values(s: Sketch) -> Value | None:
    """A loss between two values, as any op of the graph."""
    a = s.pick(s.sources())
    b = s.pick(s.sources(lambda v: v.shape == a.shape))
    how = s.pick(("mean", "sum", "none"))
    kind = s.pick(("mean_squared_error", "sigmoid_cross_entropy"))
    each = (a.bound + b.bound) * (a.bound + b.bound + 1)
    shape = a.shape if how == "none" else ()
    return s.op(
        kind,
        [a, b],
        shape,
        each * (s.rows(a.shape) if how == "sum" else 1),
        reduce=how,
    )


def penalty(s: Sketch) -> Value | None:
    """An L2 term, of a parameter that there is already."""
    if not s.shapes:
        return None
    name = s.pick(s.shapes)
    w = Value(name, s.shapes[name], None, 1.0)
    squares = s.op("mul", [w, w], w.shape, 1.0)
    return squares and s.op("reduce_sum", [squares], (), 1.0)


KINDS = (
    fc, fc, fc, matmul, matmul, pair, pair, pair, div, sqrt, scale, activation,
    softmax, softmax, attention, attention, reshape, concat, reduction, reduction, embedding, embedding,
    constant, loss_of_values, penalty, penalty,
)  # fmt: skip


def _error(s: Sketch) -> tuple[Value | None, list[str]]:
    """The loss against the data, and the metrics that go with it."""
    task = s.pick(("classes", "click", "regression"))
    x = s.pick(s.sources(_is_rows)[1:] or [s.input("x")])
    how = s.pick(("mean", "sum", "none"))
    size = CLASSES if task == "classes" else 1
    out = fc(s, x, size, "none")
    if out is None:
        return None, []
    metrics = []
    if task == "classes":
        target, kind = s.input("label"), "softmax_cross_entropy"
        if s.pick((True, False)):
            accuracy = s.op("accuracy", [out, target], (), 1.0)
            s.values = [v for v in s.values if v is not accuracy]
            metrics = [accuracy.name] if accuracy else []
    else:
        flat = s.op("reshape", [out], (BATCH,), 1.0, shape=[BATCH])
        if flat is None:
            return None, []
        out = flat
        target = s.input("click" if task == "click" else "y")
        kind = "sigmoid_cross_entropy" if task == "click" else "mean_squared_error"
    bound = 4.0 * (s.cluster.batch if how == "sum" else 1)
    loss = s.op(
        kind, [out, target], (BATCH,) if how == "none" else (), bound, reduce=how
    )
    if loss is not None and loss.shape:
        which = s.pick(("reduce_mean", "reduce_sum"))
        loss = s.op(which, [loss], (), 4.0)
    if loss is not None and task != "classes" and s.pick((True, False)):
        loss = s.op("sqrt", [loss], (), 2.0)
    return loss, metrics


def _joined(s: Sketch, loss: Value | None, term: Value | None) -> Value | None:
    """The loss and one more term, put together in one of several ways."""
    if loss is None or term is None:
        return loss
    if term.shape:
        reduced = s.op(s.pick(("reduce_mean", "reduce_sum")), [term], (), term.bound)
        term = reduced and s.op("scale", [reduced], (), term.bound, factor=0.3)
    how = s.pick(("add", "add", "sub", "mul", "div"))
    if how in ("mul", "div"):
        term = term and _positive(s, term)
    if term is None:
        return loss
    return s.op(how, [loss, term], (), 4.0) or loss


@st.composite
def models(draw: Any) -> Drawn:
    """A model with a legal placement."""
    cluster = draw(clusters())
    sketch = Sketch(draw, cluster, block=draw(st.booleans()))
    for _ in range(draw(st.integers(2, 8))):
        sketch.pick(KINDS)(sketch)
    loss, metrics = _error(sketch)
    unused = [v for v in sketch.values if v.name not in sketch.used]
    unused = [v for v in unused if loss is None or v.name != loss.name]
    for term in unused[-draw(st.integers(1, 4)) :]:
        loss = _joined(sketch, loss, term)
    if loss is None:
        loss = _fallback(sketch)
    scalars = [v.name for v in sketch.values if v.shape == () and v.name != loss.name]
    scalars += [name for name, shape in sketch.shapes.items() if shape == ()]
    if scalars:
        metrics += draw(st.lists(st.sampled_from(scalars), max_size=2, unique=True))
    return _spec(sketch, loss.name, [loss.name, *dict.fromkeys(metrics)])


def _fallback(s: Sketch) -> Value:
    """A loss where a drawn one found no legal place."""
    out = fc(s, s.input("x"), 1, "none")
    loss = out and s.op("mean_squared_error", [out, out], (), 4.0)
    assert out is not None
    loss = s.op("reduce_mean", [out], (), 4.0)
    assert loss is not None
    return loss


def _spec(s: Sketch, loss: str, metrics: list[str]) -> Drawn:
    batch, draw = s.cluster.batch, s.draw
    read = [
        name
        for name in INPUTS
        if any(name in _listed(entry.get("in", [])) for entry in s.ops)
    ]
    frozen = [n for n in s.shapes if n.endswith(".b")][
        : draw(st.sampled_from((0, 0, 1)))
    ]
    tails = st.integers(0, batch - 1)
    eval_batch = draw(st.sampled_from((batch, 2 * batch)))
    train: dict[str, Any] = {
        "source": "npz:train.npz",
        "batch": batch,
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 9)),
        "remainder": draw(st.sampled_from(("drop", "keep"))),
    }
    spec: dict[str, Any] = {
        "name": "drawn",
        "nodes": s.cluster.nodes,
        "precision": "float64",
        "inputs": {
            n: f"{INPUTS[n][0]}[{', '.join(map(str, INPUTS[n][1]))}]" for n in read
        },
        "data": {
            "train": train,
            "eval": {"source": "npz:eval.npz", "batch": eval_batch},
        },
        "graph": [{"place": "/node:worker/cpu", "ops": s.ops}] if s.block else s.ops,
    }
    if frozen:
        spec["parameters"] = [{"match": frozen[0], "trainable": False}]
    trained = [n for n in s.shapes if n not in frozen]
    spec["train"] = draw(training(s.cluster, trained, loss, metrics))
    return Drawn(
        spec,
        dict(s.shapes),
        train_rows=draw(st.sampled_from((1, 2))) * batch + draw(tails),
        eval_rows=eval_batch + draw(tails),
        seed=draw(st.integers(0, 99)),
    )


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else names
