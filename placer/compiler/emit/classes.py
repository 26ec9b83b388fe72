"""Finds the outputs of a prediction that score classes, and names the classes.

The losses of the graph tell which values are scores. The logits of a
`softmax_cross_entropy` have a number for each class; the logits of a
`sigmoid_cross_entropy` have one number for each row. The label must be an input. An output
scores classes if it is such logits, or their softmax or sigmoid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from msgspec import structs

from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.graph.structural_ops import OUTPUT
from placer.place.types import BATCH, TensorType
from placer.plan.settings.data.cell_options import first_match
from placer.plan.settings.data.classes import Classes, Form
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.sources import POSITION

_FORMS: Mapping[str, Form] = {
    "softmax_cross_entropy": "logits",
    "sigmoid_cross_entropy": "logit",
}
"""The form of the first operand of each loss."""

_SAME_SCORES = frozenset(
    {"reshape", "flatten", "squeeze", "expand_dims", "cast", "stop_gradient"}
)
"""Kinds that keep the scores of their operand. The scores of a row must stay in one row."""

_BEFORE: Mapping[tuple[str, Form], Form] = {
    ("softmax", "probabilities"): "logits",
    ("log_softmax", "logits"): "logits",
    ("log", "logits"): "probabilities",  # softmax(log p) = p
    ("clip", "probabilities"): "probabilities",
}
"""The form of an op's operand, by the kind of the op and the form of its result."""

_AFTER: Mapping[tuple[str, Form], Form] = {
    ("softmax", "logits"): "probabilities",
    ("log_softmax", "logits"): "logits",
    ("sigmoid", "logit"): "probability",
}
"""The form of an op's result, by the kind of the op and the form of its operand."""


def name_classes(model: Model) -> Model:
    """Return the model with the classes of its outputs."""
    return replace(model, classes=output_classes(model.graph, model.train))


def output_classes(graph: Graph, data: Data) -> dict[str, Classes]:
    """Return the classes of each output that scores classes.

    An output is left out if several losses compare it with different classes.

    Args:
        graph: the graph before the first pass.
        data: the source of the training rows; its vocabularies name the classes.
    """
    found: dict[str, set[Classes]] = {}
    for loss in graph.of_kind(*_FORMS):
        classes = _label_classes(graph, loss, data)
        if classes is None:
            continue
        forms = _scores_of(graph, loss, classes)
        for op in graph.of_kind(OUTPUT):
            form = forms.get(op.operands[0])
            if form is not None:
                of_output = found.setdefault(op.attrs["output"], set())
                of_output.add(structs.replace(classes, form=form))
    return {name: each.pop() for name, each in found.items() if len(each) == 1}


def _label_classes(graph: Graph, loss: Op, data: Data) -> Classes | None:
    """Return the classes of a loss if its label is an input of words or integers."""
    logits, label = graph.operand_types(loss)
    form = _FORMS[loss.kind]
    count = 2 if form == "logit" else int(logits.shape[-1])
    if not _is_of_rows(logits, form, count) or not _is_of_rows(label, "logit", 1):
        return None
    op = graph.producers[loss.operands[1]]
    while op.kind in _SAME_SCORES:
        op = graph.producers[op.operands[0]]
    if op.kind != "read" or op.attrs["input"] == POSITION:
        return None
    words = _words(data, op.attrs["input"])
    if words is not None:
        return Classes(form, count, _names(words, count))
    is_whole = "int" in graph.tensor_type(op.name).dtype
    return Classes(form, count) if is_whole else None


def _words(data: Data, name: str) -> dict[str, int] | None:
    """Return the vocabulary of an input's column: the number of each word."""
    column = (data.columns or {}).get(name, name)
    if not isinstance(column, str):
        if len(column) > 1:
            return None
        (column,) = column
    form = data.csv or data.parquet or data.python
    if form is None or column in (data.features or {}):
        return None
    words = form.words(column)
    if words is None:
        return None
    others = first_match(form.unknown, column)
    if others is None:
        return {**words}
    return {**words, "unknown": words.get("unknown", others)}


def _names(words: Mapping[str, int], count: int) -> tuple[str, ...]:
    """Return the name of each class: the first word with its number, or the number."""
    first: dict[int, str] = {}
    for word, number in words.items():
        first.setdefault(number, word)
    used = {*first.values()}
    return tuple(
        first[number] if number in first else unique_name(str(number), used)
        for number in range(count)
    )


def _scores_of(graph: Graph, loss: Op, classes: Classes) -> dict[str, Form]:
    """Return the form of each value that scores the classes of a loss."""
    name, form = loss.operands[0], classes.form
    forms: dict[str, Form] = {name: form}
    while (op := graph.producers[name]).operands:
        before = form if op.kind in _SAME_SCORES else _BEFORE.get((op.kind, form))
        name = op.operands[0]
        if before is None or not _has_scores(graph, op, name, before, classes.count):
            break
        forms[name] = form = before
    for op in graph.ops:
        form_before = forms.get(op.operands[0]) if op.operands else None
        if form_before is None or len(op.results) != 1 or op.name in forms:
            continue
        is_same = op.kind in _SAME_SCORES
        after = form_before if is_same else _AFTER.get((op.kind, form_before))
        if after is not None and _has_scores(graph, op, op.name, after, classes.count):
            forms[op.name] = after
    return forms


def _has_scores(graph: Graph, op: Op, name: str, form: Form, count: int) -> bool:
    """Whether a value holds scores by row, and the op's axis is the axis of classes."""
    type_ = graph.values[name].type
    return (
        isinstance(type_, TensorType)
        and type_.is_float
        and _is_of_rows(type_, form, count)
        and (op.kind in _SAME_SCORES or op.attrs.get("axis", -1) in (-1, 1))
    )


def _is_of_rows(type_: TensorType, form: Form, count: int) -> bool:
    """Whether the shape of a value fits scores of this form."""
    if form in ("logits", "probabilities"):
        return type_.shape == (BATCH, count)
    rest = type_.shape[1:]
    return type_.has_rows and BATCH not in rest and prod(map(int, rest)) == 1
