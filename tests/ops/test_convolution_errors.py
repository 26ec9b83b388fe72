"""Errors of convolutions, and the parameters that they create."""

import pytest
from support.op_use import Use

from placer import ops
from placer.errors import OpError
from placer.ops.attributes import complete
from placer.types import TensorType

IMAGE, KERNEL = "float32[batch, 8, 8, 4]", "float32[3, 3, 4, 6]"

INVALID_OPERANDS = [
    (
        Use("conv2d", ("int32[batch, 8, 8, 4]", KERNEL)),
        "conv2d needs a float operand [batch, height, width, channels] as 'x', not"
        " int32[batch, 8, 8, 4]",
        0,
    ),
    (
        Use("conv2d", ("float32[batch, 8, 8]", KERNEL)),
        "conv2d needs a float operand [batch, height, width, channels] as 'x', not"
        " float32[batch, 8, 8]",
        0,
    ),
    (
        Use("conv1d", ("float32[8, batch, 4]", "float32[3, 4, 6]")),
        "conv1d needs a float operand [batch, length, channels] as 'x', not"
        " float32[8, batch, 4]",
        0,
    ),
    (
        Use("conv2d", (IMAGE, "float32[3, 4, 6]")),
        "conv2d needs 'w' [height, width, in / groups, filters] for 'x'"
        " float32[batch, 8, 8, 4], 'w' is float32[3, 4, 6]",
        1,
    ),
    (
        Use("conv2d", (IMAGE, KERNEL), {"groups": 2}),
        "conv2d needs 'w' [height, width, in / groups, filters] for 'x'"
        " float32[batch, 8, 8, 4] and groups 2, 'w' is float32[3, 3, 4, 6]",
        1,
    ),
    (
        Use("conv2d", (IMAGE, "float32[3, 3, 2, 5]"), {"groups": 2}),
        "conv2d needs 'w' [height, width, in / groups, filters] for 'x'"
        " float32[batch, 8, 8, 4] and groups 2, 'w' is float32[3, 3, 2, 5]",
        1,
    ),
    (
        Use("depthwise_conv2d", (IMAGE, "float32[3, 3, 1, 4]")),
        "depthwise_conv2d needs 'w' [height, width, in, multiplier] for 'x'"
        " float32[batch, 8, 8, 4], 'w' is float32[3, 3, 1, 4]",
        1,
    ),
    (
        Use("conv2d_transpose", (IMAGE, KERNEL)),
        "conv2d_transpose needs 'w' [height, width, filters / groups, in] for 'x'"
        " float32[batch, 8, 8, 4], 'w' is float32[3, 3, 4, 6]",
        1,
    ),
    (
        Use("conv2d", (IMAGE, "float64[3, 3, 4, 6]")),
        "conv2d needs operands of one dtype, 'x' is float32[batch, 8, 8, 4],"
        " 'w' is float64[3, 3, 4, 6]",
        1,
    ),
    (
        Use("depthwise_conv2d", (IMAGE, "float32[3, 3, 4, 2]", "float32[4]")),
        "depthwise_conv2d needs 'b' [8] for 'w' float32[3, 3, 4, 2], 'b' is float32[4]",
        2,
    ),
    (
        Use("conv2d", (IMAGE, "float32[3, 9, 4, 6]")),
        "conv2d has a window of 9 where 'x' has 8 elements",
        0,
    ),
    (
        Use("conv1d", ("float32[batch, 8, 4]", "float32[3, 4, 6]"), {"dilation": 4}),
        "conv1d has a window of 9 where 'x' has 8 elements",
        0,
    ),
]

INVALID_ATTRS = [
    ({"groups": 3}, "conv2d cannot divide 4 channels into 3 groups", "groups"),
    ({"groups": 0}, "conv2d cannot divide 4 channels into 0 groups", "groups"),
    (
        {"strides": 0},
        "conv2d needs strides an int or a list of 2 ints of at least 1, not 0",
        "strides",
    ),
    (
        {"dilation": [1, 1, 1]},
        "conv2d needs dilation an int or a list of 2 ints of at least 1, not [1, 1, 1]",
        "dilation",
    ),
    ({"padding": "smae"}, "conv2d cannot have padding: smae", "padding"),
    (
        {"padding": -1},
        "conv2d needs a padding of 0 or more on every side, not -1",
        "padding",
    ),
    (
        {"padding": [[1, 1]]},
        "conv2d needs a padding of 0 or more on every side, not [[1, 1]]",
        "padding",
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


@pytest.mark.parametrize(("attrs", "message", "attr"), INVALID_ATTRS, ids=str)
def test_invalid_attributes(attrs, message, attr):
    error = error_of(Use("conv2d", (IMAGE, KERNEL), attrs))
    assert (error.message, error.attr) == (message, attr)


def test_a_padding_that_leaves_no_element_of_a_transposed_convolution():
    operands = ("float32[batch, 1, 1, 6]", KERNEL)
    error = error_of(Use("conv2d_transpose", operands, {"padding": 2}))
    assert error.message == (
        "conv2d_transpose cannot remove a padding of [[2, 2], [2, 2]] from a result of"
        " [3, 3]"
    )
    assert error.attr == "padding"


def test_hints():
    assert error_of(Use("conv2d", ("float32[batch, 8, 8]", KERNEL))).hint == (
        "reshape it to [batch, 8, 8, 1] if it has one channel"
    )
    assert error_of(Use("conv2d", (IMAGE, "float32[3, 9, 4, 6]"))).hint == (
        "use padding: same to extend 'x'"
    )
    misspelt = error_of(Use("conv2d", (IMAGE, KERNEL), {"padding": "smae"}))
    assert misspelt.hint == "did you mean 'same'?"
    short = error_of(Use("conv2d", (IMAGE, KERNEL), {"padding": [[1, 1]]}))
    assert short.hint == (
        "write valid, same, an int, or [before, after] for each of 2 dimensions"
    )


def parameters(kind: str, *operands: str, **attrs):
    declaration = ops.find(kind)
    types = [TensorType.parse(text) for text in operands]
    created = declaration.parameters(
        types, complete(declaration, attrs, for_parameters=True)
    )
    return [(p.operand, str(p.type), p.init) for p in created]


def test_layers_create_their_parameters():
    assert parameters("conv2d", IMAGE, filters=6, kernel_size=3) == [
        ("w", "float32[3, 3, 4, 6]", "xavier_uniform"),
        ("b", "float32[6]", "zeros"),
    ]
    assert parameters(
        "conv2d", IMAGE, filters=6, kernel_size=[1, 5], groups=2, bias=False
    ) == [("w", "float32[1, 5, 2, 6]", "xavier_uniform")]
    assert parameters("conv1d", "float64[batch, 9, 4]", filters=6, kernel_size=3) == [
        ("w", "float64[3, 4, 6]", "xavier_uniform"),
        ("b", "float64[6]", "zeros"),
    ]
    assert parameters("depthwise_conv2d", IMAGE, kernel_size=3, multiplier=2) == [
        ("w", "float32[3, 3, 4, 2]", "xavier_uniform"),
        ("b", "float32[8]", "zeros"),
    ]
    assert parameters(
        "conv2d_transpose", IMAGE, filters=6, kernel_size=2, groups=2
    ) == [
        ("w", "float32[2, 2, 3, 4]", "xavier_uniform"),
        ("b", "float32[6]", "zeros"),
    ]


@pytest.mark.parametrize(
    ("kind", "attrs", "message", "attr"),
    [
        ("conv2d", {"filters": 0}, "needs filters of at least 1, not 0", "filters"),
        (
            "conv2d",
            {"filters": 5, "groups": 2},
            "needs filters of at least 1 and a multiple of 2 groups, not 5",
            "filters",
        ),
        (
            "depthwise_conv2d",
            {"multiplier": 0},
            "needs multiplier of at least 1, not 0",
            "multiplier",
        ),
        (
            "conv2d_transpose",
            {"filters": 4, "kernel_size": [3, 0]},
            "needs kernel_size an int or a list of 2 ints of at least 1, not [3, 0]",
            "kernel_size",
        ),
        (
            "conv2d",
            {"filters": 4, "groups": 3},
            "cannot divide 4 channels into 3 groups",
            "groups",
        ),
    ],
)
def test_invalid_layers(kind, attrs, message, attr):
    with pytest.raises(OpError) as caught:
        parameters(kind, IMAGE, **{"kernel_size": 3, **attrs})
    assert caught.value.message == f"{kind} {message}"
    assert caught.value.attr == attr


def test_a_layer_has_one_operand():
    with pytest.raises(OpError, match="beside its parameters, 2 given"):
        parameters("conv2d", IMAGE, KERNEL, filters=6, kernel_size=3)
