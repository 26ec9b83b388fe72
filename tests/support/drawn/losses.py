"""Random losses, additional loss terms, and metrics."""

from __future__ import annotations

from typing import Any

from placer.place.types import BATCH, TensorType
from support.drawn.layers import fc
from support.drawn.sketch import CLASSES, INPUTS, Sketch, Value, is_rows
from support.drawn.values import positive


def loss_of_values(s: Sketch) -> Value | None:
    """A loss between two values of the graph."""
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
    if kind == "sigmoid_cross_entropy":  # its labels are probabilities
        b = s.add_op("sigmoid", [b], bound=1.0)
    each = (a.bound + b.bound) * (a.bound + b.bound + 1)
    size = s.size_of(a.shape) if how == "sum" else 1
    return s.add_op(kind, [a, b], bound=each * size, reduce=how, **attrs)


def similarity(s: Sketch) -> Value | None:
    """The distance between two distributions, or the similarity of two vectors."""
    x = s.pick(s.sources(is_rows))
    if s.pick((True, False)):
        y = positive(s, s.pick(s.sources(lambda v: v.shape == x.shape)))
        both = [positive(s, x), y]
        return s.add_op("cosine_similarity", both, axis=s.pick((0, -1)))
    log = s.add_op("log_softmax", [x], bound=2 * x.bound + 3)
    y = s.pick(s.sources(lambda v: v.shape == x.shape))
    target = s.add_op("softmax", [y])
    how = s.pick(("mean", "sum", "none"))
    return s.add_op("kl_div", [log, target], bound=9.0, reduce=how)


def penalty(s: Sketch) -> Value | None:
    """An L2 penalty on a parameter that exists already."""
    if not s.trainable_shapes():
        return None
    name = s.pick(s.trainable_shapes())
    w = Value(name, TensorType("float32", s.shapes[name]))
    squares = s.add_op(*s.pick((("square", [w]), ("mul", [w, w]))))
    return s.add_op("reduce_sum", [squares])


def sampled_loss(s: Sketch) -> Value:
    """A loss over sampled classes."""
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
    return s.add_op(kind, [x, label], bound=bound * size, reduce=how, **attrs)


TERMS = (
    sampled_loss,
    sampled_loss,
    loss_of_values,
    loss_of_values,
    similarity,
    penalty,
    penalty,
)


def data_loss(s: Sketch) -> tuple[Value, list[str]]:
    """Add the loss against the data; return it and the names of suitable metrics."""
    task = s.pick(("classes", "click", "regression"))
    x = s.pick(s.sources(is_rows)[1:] or [s.input("x")])
    how = s.pick(("mean", "sum", "none"))
    size = CLASSES if task == "classes" else 1
    out = fc(s, x, size, "none")
    if task == "classes":
        target = Value("label", INPUTS["label"])
        kind, attrs = s.pick(_CLASSES)
        chosen_metric = s.pick(_CLASS_METRICS)
    else:
        out = s.add_op("reshape", [out], shape=[BATCH])
        name = "click" if task == "click" else "y"
        target = Value(name, INPUTS[name])
        kind, attrs = s.pick(_CLICKS if task == "click" else _REGRESSIONS)
        chosen_metric = s.pick(
            _CLICK_METRICS if task == "click" else _REGRESSION_METRICS
        )
    metrics = []
    if chosen_metric is not None:
        metrics = [_add_metric(s, *chosen_metric, out, target)]
    bound = 4.0 * (s.cluster.batch if how == "sum" else 1)
    loss = s.add_op(kind, [out, target], bound=bound, reduce=how, **attrs)
    if loss.shape:
        loss = s.add_op(s.pick(("reduce_mean", "reduce_sum")), [loss], bound=4.0)
    if kind == "mean_squared_error" and s.pick((True, False)):
        loss = s.add_op("sqrt", [loss], bound=2.0)
    return loss, metrics


def _add_metric(
    s: Sketch, kind: str, attrs: dict[str, Any], out: Value, target: Value
) -> str:
    """Add a metric, and return its name."""
    operands = [out] if kind == "mean" else [out, target]
    if kind == "metric":  # a function of the user's, which is not traced here
        if attrs["fn"] == "called:weighted":
            operands.append(Value("label", INPUTS["label"]))
        result = {f"h{len(s.ops)}": TensorType("float32", ())}
        written = {"op": kind, **attrs}
        (value,) = s.add_entry(written, operands, result, [], [], 1.0, False)
    else:
        value = s.add_op(kind, operands, **attrs)
    s.forget(value)
    return value.name


OpChoices = tuple[tuple[str, dict[str, Any]], ...]
_CLASSES: OpChoices = (
    ("softmax_cross_entropy", {}),
    ("softmax_cross_entropy", {"label_smoothing": 0.1}),
    ("softmax_cross_entropy", {"class_weights": [0.5, 2.0, 1.0, 0.0]}),
)
_CLICKS: OpChoices = (
    ("sigmoid_cross_entropy", {}),
    ("sigmoid_cross_entropy", {"positive_weight": 3.0}),
    ("hinge", {}),
)
_REGRESSIONS: OpChoices = (
    ("mean_squared_error", {}),
    ("mean_squared_error", {}),
    ("l1_loss", {}),
    ("huber", {"delta": 0.3}),
)
_CLASS_METRICS = (
    None,
    ("accuracy", {}),
    ("top_k_accuracy", {"k": 2}),
    ("f1", {"class_id": 1}),
    ("metric", {"fn": "called:margin"}),
)
_CLICK_METRICS = (
    None,
    ("auc", {"logits": True}),
    ("precision", {"logits": True}),
    ("recall", {"logits": True, "threshold": 0.4}),
    ("metric", {"fn": "called:weighted"}),
)
_REGRESSION_METRICS = (
    None,
    ("mean_absolute_error", {}),
    ("root_mean_squared_error", {}),
    ("mean", {}),
)


def combine(s: Sketch, loss: Value, term: Value) -> Value:
    """Combine the loss with one more term, in one of several ways."""
    if term.shape:
        kind = s.pick(("reduce_mean", "reduce_sum"))
        reduced = s.add_op(kind, [term], bound=term.bound)
        term = s.add_op("scale", [reduced], bound=term.bound, factor=0.3)
    how = s.pick(("add", "add", "sub", "mul", "div"))
    if how in ("mul", "div"):
        term = positive(s, term)
    return s.add_op(how, [loss, term], bound=4.0)
