"""Errors of attention, multi_head_attention and the position ops."""

import pytest
from support.op_use import Use

from placer import ops
from placer.errors import OpError
from placer.ops.attributes import complete
from placer.types import TensorType

X, MEMORY = "float32[batch, 3, 4]", "float32[batch, 5, 4]"
LAYER = "multi_head_attention"
SQUARE = ("float32[4, 4]",) * 4

INVALID_OPERANDS = [
    (
        Use("attention", (X, MEMORY)),
        "attention needs 3 to 4 operands (query, key, value, mask), 2 given",
        None,
    ),
    (
        Use("attention", ("float32[batch, 4]", X, X)),
        "attention needs sequences [batch, time, width], 'query' is float32[batch, 4]",
        0,
    ),
    (
        Use("attention", (X, "int32[batch, 5, 4]", MEMORY)),
        "attention needs a float operand as 'key', not int32[batch, 5, 4]",
        1,
    ),
    (
        Use("attention", (X, "float32[2, 5, 4]", MEMORY)),
        "attention needs 'key' [batch, …] for 'query' float32[batch, 3, 4],"
        " 'key' is float32[2, 5, 4]",
        1,
    ),
    (
        Use("attention", (X, X, MEMORY)),
        "attention needs 'value' [batch, 3, …] for 'key' float32[batch, 3, 4],"
        " 'value' is float32[batch, 5, 4]",
        2,
    ),
    (
        Use("attention", (X, "float32[batch, 5, 6]", MEMORY)),
        "attention needs keys as wide as queries, 'query' is float32[batch, 3, 4],"
        " 'key' is float32[batch, 5, 6]",
        1,
    ),
    (
        Use("attention", (X, X, "float64[batch, 3, 4]")),
        "attention needs operands of one dtype, 'query' is float32[batch, 3, 4],"
        " 'value' is float64[batch, 3, 4]",
        2,
    ),
    (
        Use("attention", (X, MEMORY, MEMORY, "float32[batch, 5]")),
        "attention needs a mask of bool or integers, 'mask' is float32[batch, 5]",
        3,
    ),
    (
        Use("attention", (X, MEMORY, MEMORY, "int32[batch, 3]")),
        "attention needs 'mask' [batch, 5] or [batch, 3, 5] or [batch] for 'query'"
        " float32[batch, 3, 4], 'mask' is int32[batch, 3]",
        3,
    ),
    (
        Use("attention", (X, MEMORY, MEMORY, "bool[batch]")),
        "attention needs 'mask' [batch, 5] or [batch, 3, 5] for 'query'"
        " float32[batch, 3, 4], 'mask' is bool[batch]",
        3,
    ),
    (
        Use(LAYER, SQUARE, {"heads": 2}),
        "multi_head_attention needs a query, then optionally a key, a value and a"
        " mask; got none",
        None,
    ),
    (
        Use(LAYER, (X, *SQUARE[:3], "float32[4, 6]"), {"heads": 2}),
        "multi_head_attention needs 'w_output' float32[4, 4] for 'query'"
        " float32[batch, 3, 4], 'w_output' is float32[4, 6]",
        4,
    ),
    (
        Use(LAYER, (X, "float32[batch, 5, 3]", *SQUARE), {"heads": 2}),
        "multi_head_attention needs 'w_key' float32[3, 4] for 'query'"
        " float32[batch, 3, 4], 'w_key' is float32[4, 4]",
        3,
    ),
    (
        Use(LAYER, (X, "int32[batch, 5]", *SQUARE), {"heads": 2}),
        "multi_head_attention needs 'mask' [batch, 3] or [batch, 3, 3] or [batch] for"
        " 'query' float32[batch, 3, 4], 'mask' is int32[batch, 5]",
        1,
    ),
    (
        Use("position_embedding", (X, "float32[4, 4]")),
        "position_embedding needs 'table' float32[3, 4] for 'x' float32[batch, 3, 4],"
        " 'table' is float32[4, 4]",
        1,
    ),
    (
        Use("positional_encoding", ("float32[3, batch, 4]",)),
        "positional_encoding needs a sequence [batch, length, size], 'x' is"
        " float32[3, batch, 4]",
        0,
    ),
]

INVALID_ATTRS = [
    (
        Use("attention", (X, MEMORY, MEMORY), {"heads": 3}),
        "attention cannot divide 'query' of 4 into 3 heads",
        "heads",
    ),
    (
        Use("attention", (X, MEMORY, "float32[batch, 5, 3]"), {"heads": 2}),
        "attention cannot divide 'value' of 3 into 2 heads",
        "heads",
    ),
    (
        Use(LAYER, (X, *SQUARE), {"heads": 0}),
        "multi_head_attention cannot divide a size of 4 into 0 heads",
        "heads",
    ),
    (
        Use("positional_encoding", (X,), {"base": 1.0}),
        "positional_encoding needs a base above 1, not 1.0",
        "base",
    ),
]


@pytest.mark.parametrize(("use", "message", "operand"), INVALID_OPERANDS, ids=str)
def test_invalid_operands(use, message, operand):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == message
    assert caught.value.operand == operand


@pytest.mark.parametrize(("use", "message", "attr"), INVALID_ATTRS, ids=str)
def test_invalid_attributes(use, message, attr):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == message
    assert caught.value.attr == attr


def parameters(kind, *operands, **attrs):
    declaration = ops.find(kind)
    types = [TensorType.parse(text) for text in operands]
    created = declaration.parameters(
        types, complete(declaration, attrs, for_parameters=True)
    )
    return {p.operand: (str(p.type), p.init) for p in created}


def test_the_layer_creates_its_parameters():
    created = parameters(LAYER, X, heads=2)
    assert list(created) == [
        "w_query", "b_query", "w_key", "b_key",
        "w_value", "b_value", "w_output", "b_output",
    ]  # fmt: skip
    assert (
        created["w_query"] == created["w_output"] == ("float32[4, 4]", "xavier_uniform")
    )
    assert created["b_value"] == ("float32[4]", "zeros")


def test_shapes_of_parameters_follow_from_the_operands():
    other = "float32[batch, 5, 3]"
    created = parameters(LAYER, X, other, "int32[batch]", heads=2, size=6, bias=False)
    assert {name: shape for name, (shape, _) in created.items()} == {
        "w_query": "float32[4, 6]",
        "w_key": "float32[3, 6]",
        "w_value": "float32[3, 6]",
        "w_output": "float32[6, 4]",
    }


def test_position_embedding_creates_a_table():
    created = parameters("position_embedding", "float64[batch, 9, 4]")
    assert created == {"table": ("float64[9, 4]", {"normal": 0.02})}


@pytest.mark.parametrize(
    ("kind", "operands", "attrs", "message"),
    [
        (LAYER, (X,), {"heads": 2, "size": 0}, "a size of at least 1, not 0"),
        (LAYER, (X,), {"heads": 2, "size": 3}, "divide a size of 3 into 2 heads"),
        (LAYER, (X,) * 4, {"heads": 2}, "needs a query, then optionally a key"),
        (LAYER, ("int32[batch, 3]",), {"heads": 2}, "'query', not int32[batch, 3]"),
        ("position_embedding", (X, X), {}, "1 operand (x) beside its parameters"),
        ("position_embedding", ("int32[batch, 3, 4]",), {}, "needs a float operand"),
    ],
    ids=str,
)
def test_invalid_layers(kind, operands, attrs, message):
    with pytest.raises(OpError) as caught:
        parameters(kind, *operands, **attrs)
    assert message in caught.value.message
