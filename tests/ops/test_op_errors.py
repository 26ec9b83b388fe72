"""Errors of ops about operands and attributes."""

import pytest
from support.op_cases import Use

from placer import ops
from placer.errors import OpError
from placer.ops.attributes import complete, condense
from placer.types import TensorType

INVALID_OPERANDS = [
    (
        Use("fc", ("int32[batch]", "float32[4, 3]")),
        "fc needs a float operand as 'x', not int32[batch]",
        0,
    ),
    (
        Use("fc", ("float32[batch]", "float32[1, 3]")),
        "fc needs an operand of at least two dimensions as 'x', not float32[batch]",
        0,
    ),
    (
        Use("fc", ("float32[3, batch]", "float32[4, 3]")),
        "fc multiplies the last dimension, which is the batch in 'x' float32[3, batch]",
        0,
    ),
    (
        Use("fc", ("float32[batch, 5]", "float32[4, 3]")),
        "fc needs 'w' [5, size] for 'x' float32[batch, 5], 'w' is float32[4, 3]",
        1,
    ),
    (
        Use("fc", ("float32[batch, 4]", "float32[4, 3]"), {"transpose_w": True}),
        "fc needs 'w' [size, 4] for 'x' float32[batch, 4], 'w' is float32[4, 3]",
        1,
    ),
    (
        Use("fc", ("float32[batch, 4]", "float32[4, 3]", "float32[4]")),
        "fc needs 'b' [3] for 'w' float32[4, 3], 'b' is float32[4]",
        2,
    ),
    (
        Use("fc", ("float32[batch, 4]", "float64[4, 3]")),
        "fc needs operands of one dtype, 'x' is float32[batch, 4],"
        " 'w' is float64[4, 3]",
        1,
    ),
    (
        Use("fc", ("float32[batch, 4]",)),
        "fc needs 2 to 3 operands (x, w, b), 1 given",
        None,
    ),
    (Use("relu"), "relu needs 1 operand (x), 0 given", None),
    (Use("concat"), "concat needs at least 1 operand (xs), 0 given", None),
    (
        Use("matmul", ("float32[batch, 4]", "float32[3, 4]")),
        "matmul contracts 4 of 'a' float32[batch, 4] with 3 of 'b' float32[3, 4]",
        1,
    ),
    (
        Use("matmul", ("float32[4]", "float32[4, 3]")),
        "matmul needs operands of at least two dimensions, 'a' is float32[4]",
        0,
    ),
    (
        Use("add", ("float32[batch, 4]", "float32[batch]")),
        "add cannot broadcast 'a' float32[batch, 4] and 'b' float32[batch]:"
        " 4 against batch",
        1,
    ),
    (
        Use("mul", ("float32[batch, 4]", "float32[8, 4]")),
        "mul cannot broadcast 'a' float32[batch, 4] and 'b' float32[8, 4]:"
        " batch against 8",
        1,
    ),
    (
        Use("sub", ("float32[4]", "float64[4]")),
        "sub needs operands of one dtype, 'a' is float32[4], 'b' is float64[4]",
        1,
    ),
    (
        Use("embedding", ("float32[batch]", "float32[9, 4]")),
        "embedding needs an int32 or int64 operand as 'ids', not float32[batch]",
        0,
    ),
    (
        Use("concat", ("float32[batch, 4]", "float32[3, 4]")),
        "concat needs operands that differ at axis 1 only,"
        " 'xs[0]' is float32[batch, 4], 'xs[1]' is float32[3, 4]",
        1,
    ),
    (
        Use("softmax_cross_entropy", ("float32[batch, 3]", "float32[batch]")),
        "softmax_cross_entropy needs an integer operand as 'label', not float32[batch]",
        1,
    ),
    (
        Use("softmax_cross_entropy", ("float32[batch, 3]", "int32[batch, 1]")),
        "softmax_cross_entropy needs one label for each row of logits:"
        " 'logits' is float32[batch, 3], so 'label' must be int32[batch],"
        " it is int32[batch, 1]",
        1,
    ),
    (
        Use("sigmoid_cross_entropy", ("float32[batch, 1]", "int32[batch]")),
        "sigmoid_cross_entropy needs operands of one shape,"
        " 'logits' is float32[batch, 1], 'label' is int32[batch]",
        1,
    ),
    (
        Use("mean_squared_error", ("float32[batch]", "float32[batch, 1]")),
        "mean_squared_error needs operands of one shape,"
        " 'prediction' is float32[batch], 'target' is float32[batch, 1]",
        1,
    ),
    (
        Use("accumulate", ("float32[4]", "float32[3]")),
        "accumulate needs operands of one shape, 'xs[0]' is float32[4],"
        " 'xs[1]' is float32[3]",
        1,
    ),
    (
        Use("clip_scale", ("float32[4]",), {"max_norm": 1.0}),
        "clip_scale needs scalars, 'xs[0]' is float32[4]",
        0,
    ),
    (
        Use("split_rows", ("float32[4]",), {"own": (0,), "parts": 2}),
        "split_rows needs rows, 'x' is float32[4]",
        0,
    ),
]

INVALID_ATTRS = [
    (
        Use("concat", ("float32[batch, 4]",) * 2, {"axis": 0}),
        "concat cannot join along the batch, axis 0 of 'xs[0]' float32[batch, 4]",
        "axis",
    ),
    (
        Use("softmax", ("float32[batch, 4]",), {"axis": 2}),
        "softmax has axis 2, its operand has 2 dimensions",
        "axis",
    ),
    (
        Use("reduce_sum", ("float32[batch, 4]",), {"axis": [1, -1]}),
        "reduce_sum names an axis twice: [1, -1]",
        "axis",
    ),
    (
        Use("reshape", ("float32[batch, 6]",), {"shape": [-1]}),
        "reshape cannot make [-1] of float32[batch, 6]:"
        " -1 would be the batch times 6/1",
        "shape",
    ),
    (
        Use("reshape", ("float32[batch, 6]",), {"shape": [2, 3]}),
        "reshape cannot make [2, 3] of float32[batch, 6]:"
        " the number of elements differs",
        "shape",
    ),
    (
        Use("reshape", ("float32[batch, 6]",), {"shape": ["batch", 4, -1]}),
        "reshape cannot make [batch, 4, -1] of float32[batch, 6]:"
        " the number of elements differs",
        "shape",
    ),
    (
        Use("reshape", ("float32[6, batch]",), {"shape": ["batch", -1]}),
        "reshape cannot tell -1 from batch in [batch, -1] for float32[6, batch]",
        "shape",
    ),
    (
        Use("reshape", ("float32[6]",), {"shape": [-1, -1]}),
        "reshape names -1 more than once",
        "shape",
    ),
    (
        Use("reshape", ("float32[6]",), {"shape": [0, 6]}),
        "reshape has the dimension 0",
        "shape",
    ),
    (
        Use("clip_scale", ("float32[]",), {"max_norm": 0.0}),
        "clip_scale needs a finite max_norm above 0, not 0.0",
        "max_norm",
    ),
    (
        Use("split_rows", ("float32[batch]",), {"own": (0, 2), "parts": 2}),
        "split_rows has part 2 of 2",
        "own",
    ),
    (
        Use("constant", (), {"value": 256, "dtype": "uint8"}),
        "constant cannot hold 256 as uint8",
        "value",
    ),
    (
        Use("constant", (), {"value": -129, "dtype": "int8"}),
        "constant cannot hold -129 as int8",
        "value",
    ),
    (
        Use("constant", (), {"value": -3.5e38}),
        "constant cannot hold -3.5e+38 as float32",
        "value",
    ),
    (
        Use("constant", (), {"value": 0.5, "dtype": "int32"}),
        "constant cannot hold 0.5 as int32",
        "value",
    ),
]


@pytest.mark.parametrize(
    ("use", "message", "operand"), INVALID_OPERANDS, ids=lambda v: str(v)
)
def test_invalid_operands(use, message, operand):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == message
    assert caught.value.operand == operand


@pytest.mark.parametrize(
    ("use", "message", "attr"), INVALID_ATTRS, ids=lambda v: str(v)
)
def test_invalid_attributes(use, message, attr):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == message
    assert caught.value.attr == attr


def test_hints():
    def hint(use: Use) -> str | None:
        with pytest.raises(OpError) as caught:
            use.declaration.infer(use.types, use.all_attrs)
        return caught.value.hint

    assert (
        hint(Use("matmul", ("float32[batch, 4]", "float32[3, 4]")))
        == "transpose_b: true would fit"
    )
    assert (
        hint(Use("softmax_cross_entropy", ("float32[batch, 3]", "int32[batch, 1]")))
        == "reshape the label to [batch]"
    )
    assert (
        hint(Use("sigmoid_cross_entropy", ("float32[batch, 1]", "int32[batch]")))
        == "[batch] and [batch, 1] would broadcast to all pairs of rows; reshape one"
    )


def parameters(kind: str, *operands: str, **attrs):
    declaration = ops.find(kind)
    types = [TensorType.parse(text) for text in operands]
    created = declaration.parameters(
        types, complete(declaration, attrs, for_parameters=True)
    )
    return [(p.operand, str(p.type), p.init) for p in created]


def test_layers_create_their_parameters():
    assert parameters("fc", "float32[batch, 64]", size=10) == [
        ("w", "float32[64, 10]", "xavier_uniform"),
        ("b", "float32[10]", "zeros"),
    ]
    assert parameters(
        "fc", "float64[batch, 64]", size=10, bias=False, transpose_w=True
    ) == [("w", "float64[10, 64]", "xavier_uniform")]
    assert parameters("embedding", "int32[batch]", size=[9, 4]) == [
        ("table", "float32[9, 4]", "uniform")
    ]


@pytest.mark.parametrize(
    ("kind", "operand", "attrs", "message"),
    [
        ("fc", "float32[batch, 4]", {"size": 0}, "at least 1, not 0"),
        ("fc", "int32[batch, 4]", {"size": 1}, "'x', not int32[batch, 4]"),
        ("embedding", "int32[batch]", {"size": [9]}, "two ints of at least 1, not [9]"),
        ("embedding", "float32[batch]", {"size": [9, 4]}, "'ids', not float32[batch]"),
    ],
)
def test_invalid_layers(kind, operand, attrs, message):
    with pytest.raises(OpError) as caught:
        parameters(kind, operand, **attrs)
    assert message in caught.value.message


def test_the_graph_stores_only_attributes_without_default_values():
    fc = ops.find("fc")
    assert condense(fc, {"size": 10, "bias": False, "activation": "none"}) == {}
    given = {"activation": "relu", "size": 10}
    assert condense(fc, given) == {"activation": "relu"}
    assert complete(fc, condense(fc, given)) == {
        "activation": "relu",
        "transpose_w": False,
    }


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (
            {"size": 1, "activaton": "relu"},
            "fc has no attribute 'activaton'",
            "did you mean 'activation'?",
        ),
        (
            {"size": 1, "activation": "rely"},
            "fc cannot have activation: rely",
            "did you mean 'relu'?",
        ),
        ({}, "fc needs the attribute 'size': the number of outputs", None),
    ],
)
def test_attributes_are_checked_against_the_declaration(given, message, hint):
    with pytest.raises(OpError) as caught:
        complete(ops.find("fc"), given, for_parameters=True)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "group_norm"])
def test_a_normalization_without_an_operand_raises_before_creating_parameters(kind):
    declaration = ops.find(kind)
    with pytest.raises(OpError, match=rf"{kind} needs 1 to . operands .*, 0 given"):
        declaration.parameters((), complete(declaration, {}, for_parameters=True))
