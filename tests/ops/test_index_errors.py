"""Errors of gather, take_along_axis, one_hot, top_k, argmax, cumsum and reduce_max."""

import pytest
from support.op_use import Use

from placer.errors import OpError

INVALID_OPERANDS = [
    (
        Use("gather", ("float32[3, 4]", "float32[batch]")),
        "gather needs int32 or int64 indices, 'indices' is float32[batch]",
        1,
    ),
    (
        Use("take_along_axis", ("float32[batch, 4]", "int32[batch]")),
        "take_along_axis needs operands that differ at axis 1 only,"
        " 'x' is float32[batch, 4], 'indices' is int32[batch]",
        1,
    ),
    (
        Use("take_along_axis", ("float32[batch, 4]", "int32[7, 4]")),
        "take_along_axis needs operands that differ at axis 1 only,"
        " 'x' is float32[batch, 4], 'indices' is int32[7, 4]",
        1,
    ),
    (
        Use("one_hot", ("float32[batch]",), {"classes": 3}),
        "one_hot needs an integer operand as 'ids', not float32[batch]",
        0,
    ),
    (
        Use("top_k", ("float32[4, batch]",), {"k": 1}),
        "top_k needs a last dimension, which is not the batch, 'x' is float32[4, batch]",
        0,
    ),
    (
        Use("argmax", ("int32[batch, 4]",)),
        "argmax needs a float operand as 'x', not int32[batch, 4]",
        0,
    ),
    (
        Use("cumsum", ("int32[batch, 4]",)),
        "cumsum needs a float operand as 'x', not int32[batch, 4]",
        0,
    ),
    (
        Use("reduce_max", ("bool[batch]",)),
        "reduce_max needs a float operand as 'x', not bool[batch]",
        0,
    ),
]

INVALID_ATTRS = [
    (
        Use("gather", ("float32[3, 4]", "int32[batch]"), {"axis": 2}),
        "gather has axis 2, its operand has 2 dimensions",
        "axis",
    ),
    (
        Use("gather", ("float32[]", "int32[batch]")),
        "gather has axis 0, its operand has 0 dimensions",
        "axis",
    ),
    (
        Use("one_hot", ("int32[batch]",), {"classes": 0}),
        "one_hot needs at least 1 class, not 0",
        "classes",
    ),
    (
        Use("top_k", ("float32[batch, 4]",), {"k": 5}),
        "top_k cannot take 5 of 4, 'x' is float32[batch, 4]",
        "k",
    ),
    (
        Use("top_k", ("float32[batch, 4]",), {"k": 0}),
        "top_k cannot take 0 of 4, 'x' is float32[batch, 4]",
        "k",
    ),
    (
        Use("argmin", ("float32[batch, 0]",)),
        "argmin finds no element along axis 1 of 'x' float32[batch, 0]",
        "axis",
    ),
    (
        Use("reduce_min", ("float32[batch, 0]",), {"axis": -1}),
        "reduce_min finds no element along axis 1 of 'x' float32[batch, 0]",
        "axis",
    ),
    (
        Use("cumsum", ("float32[batch]",), {"axis": 1}),
        "cumsum has axis 1, its operand has 1 dimensions",
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


def test_the_hint_for_indices_without_the_axis():
    short = Use("take_along_axis", ("float32[batch, 4, 3]", "int32[batch, 3]"), {"axis": 1})  # fmt: skip
    assert error_of(short).hint == "expand_dims the indices at axis 1"
