"""Errors of losses."""

import math

import pytest
from support.op_cases import Use

from placer.errors import OpError

CLASSES = ("float32[batch, 3]", "int32[batch]")
BINARY = ("float32[batch]", "int32[batch]")
PAIR = ("float32[batch, 3]", "float32[batch, 3]")

INVALID_OPERANDS = [
    (
        Use("hinge", ("float32[batch]", "float32[batch]")),
        "hinge needs an integer operand as 'label', not float32[batch]",
        1,
    ),
    (
        Use("hinge", ("float32[batch, 1]", "int32[batch]")),
        "hinge needs operands of one shape,"
        " 'prediction' is float32[batch, 1], 'label' is int32[batch]",
        1,
    ),
    (
        Use("l1_loss", ("int32[batch]", "float32[batch]")),
        "l1_loss needs a float operand as 'prediction', not int32[batch]",
        0,
    ),
    (
        Use("huber", ("float32[batch]", "float32[batch, 1]")),
        "huber needs operands of one shape,"
        " 'prediction' is float32[batch], 'target' is float32[batch, 1]",
        1,
    ),
    (
        Use("kl_div", ("float32[batch, 3]", "float64[batch, 3]")),
        "kl_div needs operands of one dtype, 'log_prediction' is float32[batch, 3],"
        " 'target' is float64[batch, 3]",
        1,
    ),
    (
        Use("kl_div", ("float32[batch]", "float32[batch]")),
        "kl_div sums over the classes, the last dimension:"
        " 'log_prediction' is float32[batch]",
        0,
    ),
    (
        Use("cosine_similarity", ("float32[]", "float32[]")),
        "cosine_similarity needs a dimension, 'a' is float32[]",
        0,
    ),
    (
        Use("cosine_similarity", ("float32[batch, 3]", "float32[batch, 4]")),
        "cosine_similarity needs operands of one shape,"
        " 'a' is float32[batch, 3], 'b' is float32[batch, 4]",
        1,
    ),
]

INVALID_ATTRS = [
    (
        Use("softmax_cross_entropy", CLASSES, {"label_smoothing": 1.0}),
        "softmax_cross_entropy needs label_smoothing from 0 to below 1, not 1.0",
        "label_smoothing",
    ),
    (
        Use("sigmoid_cross_entropy", BINARY, {"label_smoothing": -0.1}),
        "sigmoid_cross_entropy needs label_smoothing from 0 to below 1, not -0.1",
        "label_smoothing",
    ),
    (
        Use("softmax_cross_entropy", CLASSES, {"class_weights": [1.0, 2.0]}),
        "softmax_cross_entropy needs one class weight for each class:"
        " 'logits' is float32[batch, 3], class_weights has 2",
        "class_weights",
    ),
    (
        Use("softmax_cross_entropy", CLASSES, {"class_weights": [1.0, -2.0, 1.0]}),
        "softmax_cross_entropy needs finite class_weights of at least 0,"
        " not [1.0, -2.0, 1.0]",
        "class_weights",
    ),
    (
        Use("sigmoid_cross_entropy", BINARY, {"positive_weight": 0.0}),
        "sigmoid_cross_entropy needs a positive_weight above 0, not 0.0",
        "positive_weight",
    ),
    (
        Use("huber", PAIR, {"delta": math.nan}),
        "huber needs a finite delta above 0, not nan",
        "delta",
    ),
    (
        Use("cosine_similarity", PAIR, {"epsilon": 0.0}),
        "cosine_similarity needs a finite epsilon above 0, not 0.0",
        "epsilon",
    ),
    (
        Use("cosine_similarity", PAIR, {"axis": -3}),
        "cosine_similarity has axis -3, its operand has 2 dimensions",
        "axis",
    ),
]


def error_of(use: Use) -> OpError:
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    return caught.value


@pytest.mark.parametrize(("use", "message", "operand"), INVALID_OPERANDS, ids=str)
def test_invalid_operands(use, message, operand):
    error = error_of(use)
    assert (error.message, error.operand) == (message, operand)


@pytest.mark.parametrize(("use", "message", "attr"), INVALID_ATTRS, ids=str)
def test_invalid_attributes(use, message, attr):
    error = error_of(use)
    assert (error.message, error.attr) == (message, attr)
