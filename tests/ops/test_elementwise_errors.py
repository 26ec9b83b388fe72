"""Errors of elementwise ops and activations."""

import math

import pytest
from support.op_cases import Use

from placer.errors import OpError
from placer.ops.attributes import complete

ROWS = "float32[batch, 4]"

INVALID_FIRST = [
    (Use("gelu", ("int32[batch]",)), "gelu needs a float operand as 'x', not int32[batch]"),
    (
        Use("log_softmax", ("float32[]",)),
        "log_softmax needs a dimension, 'x' is float32[]",
    ),
    (Use("pow", ("bool[4]",), {"exponent": 2.0}),
     "pow needs a float operand as 'x', not bool[4]"),
    (
        Use("where", ("float32[batch]",) * 3),
        "where needs a bool or integer operand as 'condition', not float32[batch]",
    ),
    (Use("cast", ("key[]",), {"dtype": "int32"}), "cast needs numbers, 'x' is key[]"),
]  # fmt: skip

INVALID_SECOND = [
    (
        Use("maximum", (ROWS, "float32[batch]")),
        "maximum cannot broadcast 'a' float32[batch, 4] and 'b' float32[batch]:"
        " 4 against batch",
    ),
    (
        Use("greater", ("int32[4]", "float32[4]")),
        "greater needs operands of one dtype, 'a' is int32[4], 'b' is float32[4]",
    ),
    (
        Use("equal", ("int32[4]", "bool[4]")),
        "equal needs an integer operand as 'b', not bool[4]",
    ),
    (
        Use("where", ("bool[batch]", "int32[batch]", "int32[batch]")),
        "where needs a float operand as 'a', not int32[batch]",
    ),
]

INVALID_THIRD = [
    (
        Use("where", ("bool[]", "float32[4]", "float64[4]")),
        "where needs operands of one dtype, 'a' is float32[4], 'b' is float64[4]",
    ),
    (
        Use("where", ("bool[4]", "float32[4]", "float32[5]")),
        "where cannot broadcast 'condition' bool[4] and 'a' float32[4] and"
        " 'b' float32[5]: 4 against 5",
    ),
]

INVALID_ATTRS = [
    (
        Use("log_softmax", (ROWS,), {"axis": 2}),
        "log_softmax has axis 2, its operand has 2 dimensions",
        "axis",
    ),
    (
        Use("pow", (ROWS,), {"exponent": math.inf}),
        "pow needs a finite exponent, not inf",
        "exponent",
    ),
    (Use("clip", (ROWS,)), "clip needs min, max or both", None),
    (
        Use("clip", (ROWS,), {"min": 2.0, "max": 1.0}),
        "clip has min 2.0 above max 1.0",
        "min",
    ),
]


def error_of(use: Use) -> OpError:
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    return caught.value


@pytest.mark.parametrize(
    ("use", "message", "operand"),
    [
        *((use, message, 0) for use, message in INVALID_FIRST),
        *((use, message, 1) for use, message in INVALID_SECOND),
        *((use, message, 2) for use, message in INVALID_THIRD),
    ],
    ids=str,
)
def test_invalid_operands(use, message, operand):
    error = error_of(use)
    assert (error.message, error.operand) == (message, operand)


@pytest.mark.parametrize(("use", "message", "attr"), INVALID_ATTRS, ids=str)
def test_invalid_attributes(use, message, attr):
    error = error_of(use)
    assert (error.message, error.attr) == (message, attr)


def test_the_hint_for_a_float_condition():
    error = error_of(Use("where", ("float32[4]",) * 3))
    assert error.hint == "greater, less and equal make one"


def test_cast_raises_for_an_unknown_dtype():
    use = Use("cast", (ROWS,), {"dtype": "flaot16"})
    with pytest.raises(OpError) as caught:
        complete(use.declaration, use.attrs)
    assert caught.value.message == "cast cannot have dtype: flaot16"
    assert caught.value.hint == "did you mean 'float16'?"
