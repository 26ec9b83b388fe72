"""Errors of recurrent layers."""

import pytest
from support.op_use import Use

from placer import ops
from placer.errors import OpError
from placer.ops.attributes import complete
from placer.types import TensorType

X, H, LENGTHS = "float32[batch, 4, 3]", "float32[batch, 2]", "int32[batch]"
W, U, B = "float32[3, 8]", "float32[2, 8]", "float32[8]"

INVALID_OPERANDS = [
    (
        Use("lstm", ("float32[batch, 3]", W, U, B)),
        "lstm needs a sequence [batch, time, in], 'x' is float32[batch, 3]",
        0,
    ),
    (
        Use("lstm", ("float32[batch, batch, 3]", W, U, B)),
        "lstm needs a sequence [batch, time, in], 'x' is float32[batch, batch, 3]",
        0,
    ),
    (
        Use("gru", ("int32[batch, 4, 3]", W, U)),
        "gru needs a float operand as 'x', not int32[batch, 4, 3]",
        0,
    ),
    (
        Use("lstm", (X, H, W, U, B)),
        "lstm needs x, then optionally state and cell, then optionally lengths; got"
        " float32[batch, 4, 3], float32[batch, 2]",
        None,
    ),
    (
        Use("simple_rnn"),
        "simple_rnn needs x, then optionally state, then optionally lengths; got none",
        None,
    ),
    (
        Use("lstm", (X, LENGTHS, H, H, W, U, B)),
        "lstm needs x, then optionally state and cell, then optionally lengths; got"
        " float32[batch, 4, 3], int32[batch], float32[batch, 2], float32[batch, 2]",
        None,
    ),
    (
        Use("lstm", (X, H, "float32[batch, 3]", W, U, B)),
        "lstm needs 'cell' float32[batch, 2] for 'x' float32[batch, 4, 3],"
        " 'cell' is float32[batch, 3]",
        2,
    ),
    (
        Use("lstm", (X, "int32[batch, 4]", W, U, B)),
        "lstm needs 'lengths' [batch] for 'x' float32[batch, 4, 3],"
        " 'lengths' is int32[batch, 4]",
        1,
    ),
    (
        Use("lstm", (X, "bool[batch]", W, U, B)),
        "lstm needs an integer operand as 'lengths', not bool[batch]",
        1,
    ),
    (
        Use("lstm", (X, "float32[2, 8]", U, B)),
        "lstm needs 'w_input' float32[3, 8] for 'x' float32[batch, 4, 3],"
        " 'w_input' is float32[2, 8]",
        1,
    ),
    (
        Use("lstm", (X, W, "float32[2, 6]", B)),
        "lstm needs 'w_recurrent' float32[2, 8] for 'x' float32[batch, 4, 3],"
        " 'w_recurrent' is float32[2, 6]",
        2,
    ),
    (
        Use("gru", (X, "float32[3, 6]", "float32[2, 6]", "float32[6]", "float32[6]")),
        "gru needs 'b_recurrent' float32[2] for 'x' float32[batch, 4, 3],"
        " 'b_recurrent' is float32[6]",
        4,
    ),
    (
        Use("lstm", (X, W, "float64[2, 8]", B)),
        "lstm needs 'w_recurrent' float32[2, 8] for 'x' float32[batch, 4, 3],"
        " 'w_recurrent' is float64[2, 8]",
        2,
    ),
]


@pytest.mark.parametrize(("use", "message", "operand"), INVALID_OPERANDS, ids=str)
def test_invalid_operands(use, message, operand):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == message
    assert caught.value.operand == operand


def test_the_hint_for_an_operand_of_rank_2():
    use = Use("gru", ("float32[batch, 4]", "float32[1, 6]", "float32[2, 6]"))
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.hint == "reshape it to [batch, time, 1]"


def parameters(kind, *operands, **attrs):
    declaration = ops.find(kind)
    types = [TensorType.parse(text) for text in operands]
    created = declaration.parameters(
        types, complete(declaration, attrs, for_parameters=True)
    )
    return [(p.operand, str(p.type), p.init) for p in created]


def test_layers_create_their_parameters():
    assert parameters("simple_rnn", X, size=2) == [
        ("w_input", "float32[3, 2]", "xavier_uniform"),
        ("w_recurrent", "float32[2, 2]", "orthogonal"),
        ("b", "float32[2]", "zeros"),
    ]
    assert parameters("gru", X, LENGTHS, size=2) == [
        ("w_input", "float32[3, 6]", "xavier_uniform"),
        ("w_recurrent", "float32[2, 6]", "orthogonal"),
        ("b", "float32[6]", "zeros"),
        ("b_recurrent", "float32[2]", "zeros"),
    ]
    assert parameters("lstm", X, H, H, size=2, bias=False) == [
        ("w_input", "float32[3, 8]", "xavier_uniform"),
        ("w_recurrent", "float32[2, 8]", "orthogonal"),
    ]


@pytest.mark.parametrize(
    ("operands", "size", "message"),
    [
        ((X,), 0, "lstm needs a size of at least 1, not 0"),
        ((X, H), 2, "lstm needs x, then optionally state and cell"),
        (("float32[batch, 3]",), 2, "'x' is float32[batch, 3]"),
        ((), 2, "got none"),
    ],
    ids=str,
)
def test_invalid_layers(operands, size, message):
    with pytest.raises(OpError) as caught:
        parameters("lstm", *operands, size=size)
    assert message in caught.value.message
