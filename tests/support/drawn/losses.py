"""Drawn losses against the data, terms beside them, and the metrics to watch."""

from __future__ import annotations

from typing import Any

from placer.types import BATCH, TensorType
from support.drawn.layers import fc
from support.drawn.sketch import CLASSES, INPUTS, Sketch, Value, is_rows
from support.drawn.values import positive


def loss_of_values(s: Sketch) -> Value | None:
    """A loss between two values, as any op of the graph."""
    a = s.pick(s.sources())
    b = s.pick(s.sources(lambda v: v.shape == a.shape))
    how = s.pick(("mean", "sum", "none"))
    kind, attrs = s.pick(
        (
            ("mean_squared_error", {}),
            ("sigmoid_cross_entropy", {}),
            ("sigmoid_cross_entropy", {"positive_weight": 0.5, "label_smoothing": 0.1}),
            ("huber", {"delta": 0.7}),
        )
    )
    each = (a.bound + b.bound) * (a.bound + b.bound + 1)
    size = s.rows(a.shape) if how == "sum" else 1
    return s.op(kind, [a, b], bound=each * size, reduce=how, **attrs)


def likeness(s: Sketch) -> Value | None:
    """How far two distributions are from each other, or two vectors."""
    x = s.pick(s.sources(is_rows))
    if s.pick((True, False)):
        y = positive(s, s.pick(s.sources(lambda v: v.shape == x.shape)))
        both = [positive(s, x), y]
        return s.op("cosine_similarity", both, axis=s.pick((0, -1)))
    log = s.op("log_softmax", [x], bound=2 * x.bound + 3)
    y = s.pick(s.sources(lambda v: v.shape == x.shape))
    target = s.op("softmax", [y])
    how = s.pick(("mean", "sum", "none"))
    return s.op("kl_div", [log, target], bound=9.0, reduce=how)


def penalty(s: Sketch) -> Value | None:
    """An L2 term, of a parameter that there is already."""
    if not s.trained():
        return None
    name = s.pick(s.trained())
    w = Value(name, TensorType("float32", s.shapes[name]))
    squares = s.op(*s.pick((("square", [w]), ("mul", [w, w]))))
    return s.op("reduce_sum", [squares])


def of_drawn_classes(s: Sketch) -> Value:
    """A loss over classes of which some are drawn."""
    x = s.pick(s.sources(is_rows))
    kind, how = s.pick(("nce", "sampled_softmax")), s.pick(("mean", "sum", "none"))
    attrs: dict[str, Any] = {"classes": CLASSES, "num_sampled": s.pick((1, 2, 5))}
    if s.pick((True, False)):
        attrs["sampler"] = "uniform"
    if s.pick((True, False, False)):
        attrs["remove_accidental_hits"] = s.pick((True, False))
    label = Value("label", INPUTS["label"])
    bound = 6.0 * (int(x.shape[1]) * x.bound + 3)
    size = s.cluster.batch if how == "sum" else 1
    return s.op(kind, [x, label], bound=bound * size, reduce=how, **attrs)


TERMS = (
    of_drawn_classes,
    of_drawn_classes,
    loss_of_values,
    loss_of_values,
    likeness,
    penalty,
    penalty,
)


def error(s: Sketch) -> tuple[Value, list[str]]:
    """The loss against the data, and the metrics that go with it."""
    task = s.pick(("classes", "click", "regression"))
    x = s.pick(s.sources(is_rows)[1:] or [s.input("x")])
    how = s.pick(("mean", "sum", "none"))
    size = CLASSES if task == "classes" else 1
    out = fc(s, x, size, "none")
    if task == "classes":
        target = Value("label", INPUTS["label"])
        kind, attrs = s.pick(_CLASSES)
        watched = s.pick(_OF_CLASSES)
    else:
        out = s.op("reshape", [out], shape=[BATCH])
        name = "click" if task == "click" else "y"
        target = Value(name, INPUTS[name])
        kind, attrs = s.pick(_CLICKS if task == "click" else _REGRESSIONS)
        watched = s.pick(_OF_CLICKS if task == "click" else _OF_REGRESSIONS)
    metrics = []
    if watched is not None:
        metric, given = watched
        of = [out] if metric == "mean" else [out, target]
        found = s.op(metric, of, **given)
        s.forget(found)
        metrics = [found.name]
    bound = 4.0 * (s.cluster.batch if how == "sum" else 1)
    loss = s.op(kind, [out, target], bound=bound, reduce=how, **attrs)
    if loss.shape:
        loss = s.op(s.pick(("reduce_mean", "reduce_sum")), [loss], bound=4.0)
    if kind == "mean_squared_error" and s.pick((True, False)):
        loss = s.op("sqrt", [loss], bound=2.0)
    return loss, metrics


Ways = tuple[tuple[str, dict[str, Any]], ...]
_CLASSES: Ways = (
    ("softmax_cross_entropy", {}),
    ("softmax_cross_entropy", {"label_smoothing": 0.1}),
    ("softmax_cross_entropy", {"class_weights": [0.5, 2.0, 1.0, 0.0]}),
)
_CLICKS: Ways = (
    ("sigmoid_cross_entropy", {}),
    ("sigmoid_cross_entropy", {"positive_weight": 3.0}),
    ("hinge", {}),
)
_REGRESSIONS: Ways = (
    ("mean_squared_error", {}),
    ("mean_squared_error", {}),
    ("l1_loss", {}),
    ("huber", {"delta": 0.3}),
)
_OF_CLASSES = (
    None,
    ("accuracy", {}),
    ("top_k_accuracy", {"k": 2}),
    ("f1", {"class_id": 1}),
)
_OF_CLICKS = (
    None,
    ("auc", {"logits": True}),
    ("precision", {"logits": True}),
    ("recall", {"logits": True, "threshold": 0.4}),
)
_OF_REGRESSIONS = (
    None,
    ("mean_absolute_error", {}),
    ("root_mean_squared_error", {}),
    ("mean", {}),
)


def joined(s: Sketch, loss: Value, term: Value) -> Value:
    """The loss and one more term, put together in one of several ways."""
    if term.shape:
        kind = s.pick(("reduce_mean", "reduce_sum"))
        reduced = s.op(kind, [term], bound=term.bound)
        term = s.op("scale", [reduced], bound=term.bound, factor=0.3)
    how = s.pick(("add", "add", "sub", "mul", "div"))
    if how in ("mul", "div"):
        term = positive(s, term)
    return s.op(how, [loss, term], bound=4.0)
