"""The ops as functions: each records one op of the program, under the open guards.

Written by `python -m placer.report.generate_python` from the declarations of the ops:
do not edit. docs/ops.md says more of each, docs/python.md how they are used.
"""

# Names are those of a spec, also where Python has a function of that name.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from placer.front.fluid import cast, cross_entropy, data, mean, respelt
from placer.front.ops import one, several
from placer.front.special_ops import call, parameter
from placer.front.variable import Variable

__all__ = [
    "abs",
    "accuracy",
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "add",
    "argmax",
    "argmin",
    "attention",
    "auc",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "call",
    "cast",
    "clip",
    "concat",
    "constant",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "cosine_similarity",
    "cross_entropy",
    "cumsum",
    "data",
    "depthwise_conv2d",
    "div",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "equal",
    "exp",
    "expand_dims",
    "f1",
    "fc",
    "flatten",
    "gather",
    "gelu",
    "greater",
    "group_norm",
    "gru",
    "hinge",
    "huber",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "less",
    "log",
    "log_softmax",
    "lstm",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "maximum",
    "mean",
    "mean_absolute_error",
    "mean_metric",
    "mean_squared_error",
    "minimum",
    "mul",
    "multi_head_attention",
    "nce",
    "negative",
    "one_hot",
    "pad",
    "parameter",
    "position_embedding",
    "positional_encoding",
    "pow",
    "precision",
    "recall",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "relu",
    "reshape",
    "rms_norm",
    "root_mean_squared_error",
    "sampled_softmax",
    "scale",
    "sigmoid",
    "sigmoid_cross_entropy",
    "silu",
    "simple_rnn",
    "slice",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stop_gradient",
    "sub",
    "take_along_axis",
    "tanh",
    "tile",
    "top_k",
    "top_k_accuracy",
    "transpose",
    "where",
]

Params = Mapping[str, Variable] | None
"""Parameters of other ops to use instead of own ones, by operand."""
Activation = Literal[
    "none",
    "relu",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "softplus",
    "tanh",
    "sigmoid",
    "softmax",
    "log_softmax",
]
Padding = Literal["valid", "same"] | int | Sequence[Sequence[int]]
Dtype = Literal["float16", "bfloat16", "float32", "float64"]
Reduce = Literal["mean", "sum", "none"]
Sampler = Literal["log_uniform", "uniform"]


@respelt("fc")
def fc(
    x: Variable,
    size: int,
    *,
    bias: bool = True,
    activation: Activation = "none",
    transpose_w: bool = False,
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """A fully connected layer on the last dimension, with an optional activation; it
    makes its parameters `w` and `b`.

    out = activation(x · w + b)

    x: float, [batch, …, in]: the last dimension is multiplied.
    size: the number of outputs.
    bias: whether there is a `b`.
    activation: applied to the result; softmax along the last dimension.
    transpose_w: `w` is [size, in]: to share an embedding's table.

    Parameters: `w`, `b`.
    """
    return one(
        "fc",
        {"x": x},
        {
            "size": size,
            "bias": bias,
            "activation": activation,
            "transpose_w": transpose_w,
        },
        name,
        params,
    )


def matmul(
    a: Variable,
    b: Variable,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Variable:
    """The matrix product of the last two dimensions; leading ones broadcast, so that it
    is also one product for each row, or for each head of each row.

    out = a · b

    a: float, [m, k], or with leading dimensions.
    b: the same dtype, [k, n], or with leading dimensions.
    transpose_a: `a` is [k, m].
    transpose_b: `b` is [n, k].
    """
    return one(
        "matmul",
        {"a": a, "b": b},
        {"transpose_a": transpose_a, "transpose_b": transpose_b},
        name,
    )


def conv1d(
    x: Variable,
    filters: int,
    kernel_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    bias: bool = True,
    activation: Activation = "none",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """A window of weights slid along a sequence, with an optional activation; it makes
    its parameters `w` and `b`. `padding: [[n, 0]]` looks back only.

    out[i] = activation(Σ x[i · stride + k · dilation - before] · w[k] + b), the sum
        over k and the channels of the group

    x: float, [batch, length, channels].
    filters: the channels of the result.
    kernel_size: the window: an int, or one for each dimension.
    strides: the steps of the window: an int, or one for each dimension.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    dilation: the steps inside the window, likewise.
    groups: the channels are parted into so many, each by itself.
    bias: whether there is a `b`.
    activation: applied to the result; softmax along the channels.

    Parameters: `w`, `b`.
    """
    return one(
        "conv1d",
        {"x": x},
        {
            "filters": filters,
            "kernel_size": kernel_size,
            "strides": strides,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "bias": bias,
            "activation": activation,
        },
        name,
        params,
    )


def conv2d(
    x: Variable,
    filters: int,
    kernel_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    bias: bool = True,
    activation: Activation = "none",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """A window of weights slid over an image, with an optional activation; it makes its
    parameters `w` and `b`.

    out[i, j] = activation(Σ x[i · stride + k · dilation - before, …] · w[k, l] + b),
        the sum over k, l and the channels of the group

    x: float, [batch, height, width, channels].
    filters: the channels of the result.
    kernel_size: the window: an int, or one for each dimension.
    strides: the steps of the window: an int, or one for each dimension.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    dilation: the steps inside the window, likewise.
    groups: the channels are parted into so many, each by itself.
    bias: whether there is a `b`.
    activation: applied to the result; softmax along the channels.

    Parameters: `w`, `b`.
    """
    return one(
        "conv2d",
        {"x": x},
        {
            "filters": filters,
            "kernel_size": kernel_size,
            "strides": strides,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "bias": bias,
            "activation": activation,
        },
        name,
        params,
    )


def depthwise_conv2d(
    x: Variable,
    kernel_size: int | Sequence[int],
    *,
    multiplier: int = 1,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    bias: bool = True,
    activation: Activation = "none",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """Each channel convolved by itself, with `multiplier` filters that stand side by
    side in the result; it makes its parameters `w` and `b`.

    out[i, j, c · multiplier + m] = activation(Σ x[i · stride + k · dilation - before,
        …, c] · w[k, l, c, m] + b), the sum over k and l

    x: float, [batch, height, width, channels].
    multiplier: the filters of each channel.
    kernel_size: the window: an int, or one for each dimension.
    strides: the steps of the window: an int, or one for each dimension.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    dilation: the steps inside the window, likewise.
    bias: whether there is a `b`.
    activation: applied to the result; softmax along the channels.

    Parameters: `w`, `b`.
    """
    return one(
        "depthwise_conv2d",
        {"x": x},
        {
            "multiplier": multiplier,
            "kernel_size": kernel_size,
            "strides": strides,
            "padding": padding,
            "dilation": dilation,
            "bias": bias,
            "activation": activation,
        },
        name,
        params,
    )


def conv1d_transpose(
    x: Variable,
    filters: int,
    kernel_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    bias: bool = True,
    activation: Activation = "none",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """The transpose of the conv1d that has these attributes and this `w`: each element
    adds a window of weights to the result.

    out[i · stride + k · dilation - before] += x[i] · w[k]ᵀ; then b and the activation

    x: float, [batch, length, channels].
    filters: the channels of the result.
    kernel_size: the window: an int, or one for each dimension.
    strides: the steps of the window: an int, or one for each dimension.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    dilation: the steps inside the window, likewise.
    groups: the channels are parted into so many, each by itself.
    bias: whether there is a `b`.
    activation: applied to the result; softmax along the channels.

    Parameters: `w`, `b`.
    """
    return one(
        "conv1d_transpose",
        {"x": x},
        {
            "filters": filters,
            "kernel_size": kernel_size,
            "strides": strides,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "bias": bias,
            "activation": activation,
        },
        name,
        params,
    )


def conv2d_transpose(
    x: Variable,
    filters: int,
    kernel_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    bias: bool = True,
    activation: Activation = "none",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """The transpose of the conv2d that has these attributes and this `w`: each element
    adds a window of weights to the result. The result has size · stride elements where
    padding is same, and what its windows cover where it is valid; a padding in numbers
    is taken off that.

    out[i · stride + k · dilation - before, …] += x[i, j] · w[k, l]ᵀ; then b and the
        activation

    x: float, [batch, height, width, channels].
    filters: the channels of the result.
    kernel_size: the window: an int, or one for each dimension.
    strides: the steps of the window: an int, or one for each dimension.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    dilation: the steps inside the window, likewise.
    groups: the channels are parted into so many, each by itself.
    bias: whether there is a `b`.
    activation: applied to the result; softmax along the channels.

    Parameters: `w`, `b`.
    """
    return one(
        "conv2d_transpose",
        {"x": x},
        {
            "filters": filters,
            "kernel_size": kernel_size,
            "strides": strides,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "bias": bias,
            "activation": activation,
        },
        name,
        params,
    )


def max_pool1d(
    x: Variable,
    pool_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    name: str | None = None,
) -> Variable:
    """The largest element that a window meets; padding is never the largest. Of equal
    ones the first has the gradient, and NaN is larger than any.

    out = max x over the window; dx = dy where the largest is, else 0

    x: float, [batch, length, channels].
    pool_size: the window: an int, or one for each dimension.
    strides: the steps of the window, likewise; null: its own size.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    """
    return one(
        "max_pool1d",
        {"x": x},
        {"pool_size": pool_size, "strides": strides, "padding": padding},
        name,
    )


def max_pool2d(
    x: Variable,
    pool_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    name: str | None = None,
) -> Variable:
    """The largest element that a window meets; padding is never the largest. Of equal
    ones the first has the gradient, and NaN is larger than any.

    out = max x over the window; dx = dy where the largest is, else 0

    x: float, [batch, height, width, channels].
    pool_size: the window: an int, or one for each dimension.
    strides: the steps of the window, likewise; null: its own size.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    """
    return one(
        "max_pool2d",
        {"x": x},
        {"pool_size": pool_size, "strides": strides, "padding": padding},
        name,
    )


def avg_pool1d(
    x: Variable,
    pool_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    name: str | None = None,
) -> Variable:
    """The mean of the elements that a window meets; padding is not one of them, so that
    at an edge fewer are divided by.

    out = Σ x over the window / n, n the elements of x in it

    x: float, [batch, length, channels].
    pool_size: the window: an int, or one for each dimension.
    strides: the steps of the window, likewise; null: its own size.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    """
    return one(
        "avg_pool1d",
        {"x": x},
        {"pool_size": pool_size, "strides": strides, "padding": padding},
        name,
    )


def avg_pool2d(
    x: Variable,
    pool_size: int | Sequence[int],
    *,
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    name: str | None = None,
) -> Variable:
    """The mean of the elements that a window meets; padding is not one of them, so that
    at an edge fewer are divided by. The mean of a whole image is `reduce_mean` with
    `axis: [1, 2]`.

    out = Σ x over the window / n, n the elements of x in it

    x: float, [batch, height, width, channels].
    pool_size: the window: an int, or one for each dimension.
    strides: the steps of the window, likewise; null: its own size.
    padding: valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one
        behind; an int: so much on every side; or [before, after] for each dimension.
    """
    return one(
        "avg_pool2d",
        {"x": x},
        {"pool_size": pool_size, "strides": strides, "padding": padding},
        name,
    )


def adaptive_max_pool2d(
    x: Variable,
    output_size: int | Sequence[int],
    *,
    name: str | None = None,
) -> Variable:
    """The largest element of each of as many windows as the result has places. Window i
    of n is from ⌊i · size / n⌋ to ⌈(i + 1) · size / n⌉: windows may differ by one
    element, and neighbours may share one. Of equal elements the first has the gradient.

    out = max x over the window; dx = dy where the largest is, else 0

    x: float, [batch, height, width, channels].
    output_size: the size of the result: an int, or one for each dimension.
    """
    return one("adaptive_max_pool2d", {"x": x}, {"output_size": output_size}, name)


def adaptive_avg_pool2d(
    x: Variable,
    output_size: int | Sequence[int],
    *,
    name: str | None = None,
) -> Variable:
    """The mean of each of as many windows as the result has places. Window i of n is
    from ⌊i · size / n⌋ to ⌈(i + 1) · size / n⌉: windows may differ by one element, and
    neighbours may share one.

    out = Σ x over the window / n, n the elements of x in it

    x: float, [batch, height, width, channels].
    output_size: the size of the result: an int, or one for each dimension.
    """
    return one("adaptive_avg_pool2d", {"x": x}, {"output_size": output_size}, name)


def layer_norm(
    x: Variable,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    affine: bool = True,
    bias: bool = True,
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """Shifted and scaled so that the dimensions from `axis` on have mean 0 and variance
    1 together; it makes its parameters `scale` and `bias`. The statistics of a half
    float are taken in float32.

    out = scale · (x - mean) / √(variance + epsilon) + bias, the variance being mean (x
        - mean)²

    x: float; no dimension from `axis` on is the batch.
    axis: the first of the dimensions normalised together, which are all from it on.
    epsilon: added to the variance.
    affine: whether there are parameters.
    bias: whether one of them is a `bias`.

    Parameters: `scale`, `bias`.
    """
    return one(
        "layer_norm",
        {"x": x},
        {"axis": axis, "epsilon": epsilon, "affine": affine, "bias": bias},
        name,
        params,
    )


def rms_norm(
    x: Variable,
    *,
    axis: int = -1,
    epsilon: float = 1e-06,
    affine: bool = True,
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """Scaled so that the dimensions from `axis` on have mean square 1 together; it
    makes its parameter `scale`. The mean square of a half float is taken in float32.

    out = scale · x / √(mean x² + epsilon)

    x: float; no dimension from `axis` on is the batch.
    axis: the first of the dimensions normalised together, which are all from it on.
    epsilon: added to the mean square.
    affine: whether there are parameters.

    Parameters: `scale`.
    """
    return one(
        "rms_norm",
        {"x": x},
        {"axis": axis, "epsilon": epsilon, "affine": affine},
        name,
        params,
    )


def group_norm(
    x: Variable,
    *,
    groups: int = 32,
    epsilon: float = 1e-05,
    affine: bool = True,
    bias: bool = True,
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """Shifted and scaled so that each group of channels of a row has mean 0 and
    variance 1; it makes its parameters `scale` and `bias`. With as many groups as
    channels it is instance normalisation. The statistics of a half float are taken in
    float32.

    out = scale · (x - mean) / √(variance + epsilon) + bias, mean and variance over all
        dimensions of a row and the channels of a group

    x: float, [batch, …, channels].
    groups: into how many the channels are parted.
    epsilon: added to the variance.
    affine: whether there are parameters.
    bias: whether one of them is a `bias`.

    Parameters: `scale`, `bias`.
    """
    return one(
        "group_norm",
        {"x": x},
        {"groups": groups, "epsilon": epsilon, "affine": affine, "bias": bias},
        name,
        params,
    )


@respelt("embedding")
def embedding(
    ids: Variable,
    size: Sequence[int],
    *,
    dtype: Dtype = "float32",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """The rows of a table that `ids` name; it makes its parameter `table`. An id
    outside the vocabulary, negative ones too, gives a row of NaN and no gradient, so
    that the loss shows it.

    out[i] = table[ids[i]]

    ids: int32 or int64, any shape.
    size: [vocabulary, dimension] of the table.
    dtype: of the table.

    Parameters: `table`.
    """
    return one("embedding", {"ids": ids}, {"size": size, "dtype": dtype}, name, params)


def position_embedding(
    x: Variable,
    *,
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """A sequence plus a learned vector for each of its steps; it makes its parameter
    `table`.

    out[i, t] = x[i, t] + table[t]

    x: float, [batch, length, size].

    Parameters: `table`.
    """
    return one("position_embedding", {"x": x}, {}, name, params)


def positional_encoding(
    x: Variable,
    *,
    base: float = 10000.0,
    name: str | None = None,
) -> Variable:
    """A sequence plus sines and cosines of its steps, of wavelengths from 2π to about
    2π · base.

    out[i, t, 2k] = x[i, t, 2k] + sin(t / base^(2k / size)), and at 2k + 1 with cos

    x: float, [batch, length, size].
    base: how much longer the longest wave is.
    """
    return one("positional_encoding", {"x": x}, {"base": base}, name)


def simple_rnn(
    x: Variable,
    size: int,
    *,
    state: Variable | None = None,
    lengths: Variable | None = None,
    bias: bool = True,
    activation: Literal["tanh", "relu"] = "tanh",
    reverse: bool = False,
    params: Params = None,
    out: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """A layer that carries its own result from step to step. It gives the states after
    each step as `sequence` and the one after the last as `last`.

    h[t] = activation(x[t] · w_input + h[t-1] · w_recurrent + b)

    x: float, [batch, time, in].
    state: the same dtype, [batch, size]: the hidden state before the first step, else
        0; optional.
    lengths: integer, [batch]: the steps of each row; at those behind them its states
        stay as they are, which `sequence` repeats; optional.
    size: the length of the state.
    bias: whether there are biases.
    activation: of the state; the slope of relu at 0 is 0.
    reverse: from the last step to the first; `sequence` stands in the order of x all
        the same, `last` is the state at the first step.

    Parameters: `w_input`, `w_recurrent`, `b`.

    Returns: `sequence`, `last`.
    """
    return several(
        "simple_rnn",
        {"x": x, "state": state, "lengths": lengths},
        {"size": size, "bias": bias, "activation": activation, "reverse": reverse},
        name,
        params,
        out,
    )


def gru(
    x: Variable,
    size: int,
    *,
    state: Variable | None = None,
    lengths: Variable | None = None,
    bias: bool = True,
    reverse: bool = False,
    params: Params = None,
    out: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """A gated recurrent layer. Of the numbers of `w_input`, `w_recurrent` and `b` the
    first third is of the reset gate, then come the update gate and the candidate.

    r, u = sigmoid(x[t] · w_input + h[t-1] · w_recurrent + b), their thirds; n =
        tanh(x[t] · w_input + b + r · (h[t-1] · w_recurrent + b_recurrent)), their last
        thirds; h[t] = (1 - u) · n + u · h[t-1]

    x: float, [batch, time, in].
    state: the same dtype, [batch, size]: the hidden state before the first step, else
        0; optional.
    lengths: integer, [batch]: the steps of each row; at those behind them its states
        stay as they are, which `sequence` repeats; optional.
    size: the length of the state.
    bias: whether there are biases.
    reverse: from the last step to the first; `sequence` stands in the order of x all
        the same, `last` is the state at the first step.

    Parameters: `w_input`, `w_recurrent`, `b`, `b_recurrent`.

    Returns: `sequence`, `last`.
    """
    return several(
        "gru",
        {"x": x, "state": state, "lengths": lengths},
        {"size": size, "bias": bias, "reverse": reverse},
        name,
        params,
        out,
    )


def lstm(
    x: Variable,
    size: int,
    *,
    state: Variable | None = None,
    cell: Variable | None = None,
    lengths: Variable | None = None,
    bias: bool = True,
    forget_bias: float = 1.0,
    reverse: bool = False,
    params: Params = None,
    out: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """A recurrent layer with a cell that is written, kept and read through gates. Of
    the numbers of `w_input`, `w_recurrent` and `b` the first quarter is of the input
    gate, then come the forget gate, the candidate and the output gate. It gives the
    cell after the last step too.

    i, f, g, o = x[t] · w_input + h[t-1] · w_recurrent + b, its quarters; c[t] =
        sigmoid(f + forget_bias) · c[t-1] + sigmoid(i) · tanh(g); h[t] = sigmoid(o) ·
        tanh(c[t])

    x: float, [batch, time, in].
    state: the same dtype, [batch, size]: the hidden state before the first step, else
        0; optional.
    cell: the same dtype, [batch, size]: the cell state before the first step; given
        with `state`; optional.
    lengths: integer, [batch]: the steps of each row; at those behind them its states
        stay as they are, which `sequence` repeats; optional.
    size: the length of the state.
    bias: whether there are biases.
    forget_bias: added to the forget gate beside `b`, so that a new layer remembers.
    reverse: from the last step to the first; `sequence` stands in the order of x all
        the same, `last` is the state at the first step.

    Parameters: `w_input`, `w_recurrent`, `b`.

    Returns: `sequence`, `last`, `cell`.
    """
    return several(
        "lstm",
        {"x": x, "state": state, "cell": cell, "lengths": lengths},
        {"size": size, "bias": bias, "forget_bias": forget_bias, "reverse": reverse},
        name,
        params,
        out,
    )


def attention(
    query: Variable,
    key: Variable,
    value: Variable,
    *,
    mask: Variable | None = None,
    heads: int = 1,
    causal: bool = False,
    scale: float | None = None,
    name: str | None = None,
) -> Variable:
    """Each query's mean of the values, weighted by how well their keys fit it, in each
    head by itself; heads lie side by side in the last dimension. A query that may look
    at no key gets zeros and gives no gradient, as in torch.

    out = softmax(scale · query · keyᵀ) · value, in each head

    query: float, [batch, time, heads · size].
    key: the same dtype, [batch, keys, heads · size].
    value: the same dtype, [batch, keys, heads · size of a value].
    mask: which keys may be looked at, those that are true or not 0: bool or integer,
        [batch, keys] or [batch, time, keys]; or integer, [batch]: how many, from the
        first on; optional.
    heads: how many heads lie side by side.
    causal: whether step t looks at no key after the t-th.
    scale: what the products are multiplied by; null: 1 / √size.
    """
    return one(
        "attention",
        {"query": query, "key": key, "value": value, "mask": mask},
        {"heads": heads, "causal": causal, "scale": scale},
        name,
    )


def multi_head_attention(
    query: Variable,
    heads: int,
    *,
    key: Variable | None = None,
    value: Variable | None = None,
    mask: Variable | None = None,
    size: int | None = None,
    bias: bool = True,
    causal: bool = False,
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """A layer that projects queries, keys and values, lets each query look at the keys
    in each of its heads, and projects what they saw. With one sequence it is
    self-attention, with two the second gives keys and values. A query that may look at
    no key sees zeros, as in attention.

    out = attention(query · w_query + b_query, key · w_key + b_key, value · w_value +
        b_value) · w_output + b_output

    query: float, [batch, time, width].
    key: the same dtype, [batch, keys, width of a key]; else the query; optional.
    value: the same dtype, [batch, keys, width of a value]; else the key; optional.
    mask: which keys may be looked at, those that are true or not 0: bool or integer,
        [batch, keys] or [batch, time, keys]; or integer, [batch]: how many, from the
        first on; optional.
    heads: how many heads there are, each of size / heads.
    size: the width of all heads together; null: that of the query.
    bias: whether there are biases.
    causal: whether step t looks at no key after the t-th.

    Parameters: `w_query`, `b_query`, `w_key`, `b_key`, `w_value`, `b_value`,
    `w_output`, `b_output`.
    """
    return one(
        "multi_head_attention",
        {"query": query, "key": key, "value": value, "mask": mask},
        {"heads": heads, "size": size, "bias": bias, "causal": causal},
        name,
        params,
    )


def add(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The sum of two values.

    out = a + b

    a: float, any shape.
    b: float, broadcast to a.
    """
    return one("add", {"a": a, "b": b}, {}, name)


def sub(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The difference of two values.

    out = a - b

    a: float, any shape.
    b: float, broadcast to a.
    """
    return one("sub", {"a": a, "b": b}, {}, name)


def mul(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The elementwise product of two values.

    out = a · b

    a: float, any shape.
    b: float, broadcast to a.
    """
    return one("mul", {"a": a, "b": b}, {}, name)


def div(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The elementwise quotient of two values; x / 0 is inf or NaN as IEEE 754 has it.

    out = a / b; da = dy / b; db = -(dy / b) · (a / b)

    a: float, any shape.
    b: float, broadcast to a.
    """
    return one("div", {"a": a, "b": b}, {}, name)


def scale(
    x: Variable,
    factor: float,
    *,
    bias: float = 0.0,
    name: str | None = None,
) -> Variable:
    """A value times a number, plus a number.

    out = factor · x + bias

    x: float, any shape.
    factor: what x is multiplied by.
    bias: what is added afterwards.
    """
    return one("scale", {"x": x}, {"factor": factor, "bias": bias}, name)


def negative(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The value with the other sign.

    out = -x

    x: float, any shape.
    """
    return one("negative", {"x": x}, {}, name)


def abs(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The magnitude. Its derivative at 0 is 0, as JAX and PyTorch have it.

    out = |x|; dx = dy · sign(x)

    x: float, any shape.
    """
    return one("abs", {"x": x}, {}, name)


def square(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The value times itself.

    out = x²; dx = 2 · x · dy

    x: float, any shape.
    """
    return one("square", {"x": x}, {}, name)


def sqrt(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The square root, element by element. Its derivative at 0 is inf, as JAX has it.

    out = √x; dx = dy / (2 · out)

    x: float, any shape.
    """
    return one("sqrt", {"x": x}, {}, name)


def pow(
    x: Variable,
    exponent: float,
    *,
    name: str | None = None,
) -> Variable:
    """The value to a fixed power. A whole exponent multiplies, so that negative values
    have powers too; of another exponent they give NaN. x to the 0 is 1 for every x, and
    has no slope. A slope at 0 is inf where the exponent is below 1.

    out = x^exponent; dx = dy · exponent · x^(exponent - 1)

    x: float, any shape.
    exponent: the power, finite.
    """
    return one("pow", {"x": x}, {"exponent": exponent}, name)


def exp(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The exponential.

    out = e^x; dx = dy · out

    x: float, any shape.
    """
    return one("exp", {"x": x}, {}, name)


def log(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The natural logarithm: of 0 it is -inf, of a negative value NaN.

    out = log x; dx = dy / x

    x: float, any shape.
    """
    return one("log", {"x": x}, {}, name)


def greater(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """Whether the first value is the greater one: something for `where` to take. No
    gradient flows through it.

    out = a > b

    a: float or integer, any shape.
    b: the same dtype, broadcast to a.
    """
    return one("greater", {"a": a, "b": b}, {}, name)


def less(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """Whether the first value is the smaller one. No gradient flows through it.

    out = a < b

    a: float or integer, any shape.
    b: the same dtype, broadcast to a.
    """
    return one("less", {"a": a, "b": b}, {}, name)


def equal(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """Whether two values are equal; NaN equals nothing. No gradient flows through it.

    out = a = b

    a: float or integer, any shape.
    b: the same dtype, broadcast to a.
    """
    return one("equal", {"a": a, "b": b}, {}, name)


def where(
    condition: Variable,
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """One value where a condition is true, another elsewhere. What is not taken gets a
    gradient of 0; an op before it makes NaN of that where its own slope is inf.

    out = a where condition, else b

    condition: bool, or an integer that is true unless it is 0.
    a: float, taken where the condition is true.
    b: the same dtype, taken elsewhere; all three broadcast.
    """
    return one("where", {"condition": condition, "a": a, "b": b}, {}, name)


def maximum(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The greater of two values. Where they are equal each gets half of the gradient,
    as in JAX and PyTorch.

    out = max(a, b); da = dy where a > b, dy / 2 where a = b, else 0

    a: float, any shape.
    b: float, broadcast to a.
    """
    return one("maximum", {"a": a, "b": b}, {}, name)


def minimum(
    a: Variable,
    b: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The smaller of two values. Where they are equal each gets half of the gradient,
    as in JAX and PyTorch.

    out = min(a, b); da = dy where a < b, dy / 2 where a = b, else 0

    a: float, any shape.
    b: float, broadcast to a.
    """
    return one("minimum", {"a": a, "b": b}, {}, name)


def clip(
    x: Variable,
    *,
    min: float | None = None,
    max: float | None = None,
    name: str | None = None,
) -> Variable:
    """The value, kept within bounds. The gradient passes on the bounds and between
    them, as PyTorch and TensorFlow have it; JAX halves it on a bound.

    out = min(max(x, min), max); dx = dy where min ≤ x ≤ max, else 0

    x: float, any shape.
    min: the lower bound, null for none.
    max: the upper bound, null for none.
    """
    return one("clip", {"x": x}, {"min": min, "max": max}, name)


def relu(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The positive part. Its derivative at 0 is 0.

    out = max(x, 0); dx = dy where x > 0, else 0

    x: float, any shape.
    """
    return one("relu", {"x": x}, {}, name)


def leaky_relu(
    x: Variable,
    *,
    negative_slope: float = 0.01,
    name: str | None = None,
) -> Variable:
    """x where it is positive, else a small part of it. Its derivative at 0 is
    `negative_slope`, as PyTorch has it: that of relu where the slope is 0.

    out = x where x > 0, else negative_slope · x

    x: float, any shape.
    negative_slope: the slope below 0.
    """
    return one("leaky_relu", {"x": x}, {"negative_slope": negative_slope}, name)


def elu(
    x: Variable,
    *,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """x where it is positive, else an exponential that comes down to -alpha. Its
    derivative at 0 is alpha, as JAX and PyTorch have it.

    out = x where x > 0, else alpha · (exp(x) - 1)

    x: float, any shape.
    alpha: what it comes down to, negated.
    """
    return one("elu", {"x": x}, {"alpha": alpha}, name)


def gelu(
    x: Variable,
    *,
    approximate: bool = False,
    name: str | None = None,
) -> Variable:
    """x times the chance that a standard normal number is below it. It is exact as in
    PyTorch and Keras; JAX approximates where it is not told otherwise.

    out = x · Φ(x), Φ(x) = (1 + erf(x / √2)) / 2; approximate: Φ(x) ≈ (1 + tanh(√(2/π) ·
        (x + 0.044715 · x³))) / 2

    x: float, any shape.
    approximate: by tanh, as BERT's and GPT-2's weights were trained: off by up to
        0.0005.
    """
    return one("gelu", {"x": x}, {"approximate": approximate}, name)


def silu(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """x times its logistic function, also called swish.

    out = x · sigmoid(x); dx = dy · s · (1 + x · (1 - s)), s = sigmoid(x)

    x: float, any shape.
    """
    return one("silu", {"x": x}, {}, name)


def softplus(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The smooth positive part, without overflow.

    out = log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)); dx = dy · sigmoid(x)

    x: float, any shape.
    """
    return one("softplus", {"x": x}, {}, name)


def tanh(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The hyperbolic tangent.

    out = tanh x; dx = dy · (1 - out²)

    x: float, any shape.
    """
    return one("tanh", {"x": x}, {}, name)


def sigmoid(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The logistic function.

    out = 1 / (1 + exp(-x)); dx = dy · out · (1 - out)

    x: float, any shape.
    """
    return one("sigmoid", {"x": x}, {}, name)


def softmax(
    x: Variable,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Variable:
    """Positive values that sum to 1 along an axis; the maximum is taken off first, so
    that no exponential overflows.

    out = exp(x) / Σ exp(x); dx = out · (dy - Σ dy · out)

    x: float, at least one dimension.
    axis: the axis that sums to 1.
    """
    return one("softmax", {"x": x}, {"axis": axis}, name)


def log_softmax(
    x: Variable,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Variable:
    """The logarithms of softmax, exact where softmax itself would be 0.

    out = x - log Σ exp(x); dx = dy - exp(out) · Σ dy

    x: float, at least one dimension.
    axis: the axis along which the exponentials sum to 1.
    """
    return one("log_softmax", {"x": x}, {"axis": axis}, name)


def reshape(
    x: Variable,
    shape: Sequence[int | Literal["batch"]],
    *,
    name: str | None = None,
) -> Variable:
    """The same elements in another shape, the last dimension running fastest.

    out[i] = x[i] in row-major order

    x: any dtype and shape.
    shape: the dimensions: ints, `batch` at most once, -1 for the rest at most once.
    """
    return one("reshape", {"x": x}, {"shape": shape}, name)


def flatten(
    x: Variable,
    *,
    axis: int = 1,
    name: str | None = None,
) -> Variable:
    """All dimensions from an axis on as one, the last of them running fastest; each row
    as a vector, if nothing is said. Where no dimension is left, it is one of 1.

    out[i] = x[i] in row-major order

    x: any dtype, at least one dimension.
    axis: the first dimension that is joined.
    """
    return one("flatten", {"x": x}, {"axis": axis}, name)


def concat(
    xs: Sequence[Variable],
    *,
    axis: int = -1,
    name: str | None = None,
) -> Variable:
    """Values side by side along an axis, which is not the batch.

    out = xs[0], xs[1], … along axis

    xs: the same dtype, the same shape but for `axis`; one or more.
    axis: where they are joined.
    """
    return one("concat", {"xs": xs}, {"axis": axis}, name)


def tile(
    x: Variable,
    repeats: Sequence[int],
    *,
    name: str | None = None,
) -> Variable:
    """A value beside itself, so many times along each dimension.

    out[i, j] = x[i mod n, j mod m]

    x: any dtype and shape.
    repeats: how many times along each dimension, 1 along the batch.
    """
    return one("tile", {"x": x}, {"repeats": repeats}, name)


def transpose(
    x: Variable,
    *,
    perm: Sequence[int] | None = None,
    name: str | None = None,
) -> Variable:
    """The dimensions in another order; all of them reversed, if none is said. One that
    moves the batch from the front needs the whole of it.

    out.shape[i] = x.shape[perm[i]]

    x: any dtype and shape.
    perm: the axes of `x` in the result's order; null: reversed.
    """
    return one("transpose", {"x": x}, {"perm": perm}, name)


def squeeze(
    x: Variable,
    axis: int | Sequence[int],
    *,
    name: str | None = None,
) -> Variable:
    """Without dimensions of 1, which are named: a batch of one row is not one of them.

    out[i] = x[i, 0]

    x: any dtype and shape.
    axis: the axes that go.
    """
    return one("squeeze", {"x": x}, {"axis": axis}, name)


def expand_dims(
    x: Variable,
    axis: int | Sequence[int],
    *,
    name: str | None = None,
) -> Variable:
    """With new dimensions of 1. One before the batch needs the whole of it.

    out[i, 0] = x[i]

    x: any dtype and shape.
    axis: where they stand in the result.
    """
    return one("expand_dims", {"x": x}, {"axis": axis}, name)


def split(
    x: Variable,
    sections: int | Sequence[int],
    *,
    axis: int = -1,
    out: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Several values, one after the other along an axis, which is not the batch: the
    inverse of `concat`.

    out0, out1, … = x along axis

    x: any dtype, at least one dimension.
    sections: how many equal parts, or the size of each.
    axis: where it is cut.
    """
    return several(
        "split",
        {"x": x},
        {"sections": sections, "axis": axis},
        name,
        None,
        out,
    )


def slice(
    x: Variable,
    axis: int | Sequence[int],
    *,
    start: int | Sequence[int] | None = None,
    stop: int | Sequence[int] | None = None,
    step: int | Sequence[int] = 1,
    name: str | None = None,
) -> Variable:
    """A part of each dimension that is named: what `start:stop:step` is in Python, but
    that a bound outside the dimension is an error. A negative bound counts from the
    end, a negative step goes backwards.

    out = x[:, start:stop:step]

    x: any dtype, at least one dimension.
    axis: the dimensions that are cut, not the batch.
    start: the first index, for all axes or one for each; null: the end it starts at.
    stop: the index before which it stops; null: none.
    step: from one index to the next, not 0.
    """
    return one(
        "slice",
        {"x": x},
        {"axis": axis, "start": start, "stop": stop, "step": step},
        name,
    )


def pad(
    x: Variable,
    paddings: Sequence[Sequence[int]],
    *,
    value: float = 0.0,
    mode: Literal["constant", "edge", "reflect"] = "constant",
    name: str | None = None,
) -> Variable:
    """With more elements before and after, along dimensions that are not the batch: a
    number, the outermost element, or a reflection that does not repeat it.

    out = value, …, x, …, value

    x: any dtype, at least one dimension.
    paddings: [before, after] for each dimension, [0, 0] for the batch.
    value: what is put there, if the mode is constant.
    mode: what is put there.
    """
    return one(
        "pad",
        {"x": x},
        {"paddings": paddings, "value": value, "mode": mode},
        name,
    )


def gather(
    x: Variable,
    indices: Variable,
    *,
    axis: int = 0,
    name: str | None = None,
) -> Variable:
    """What stands at `indices` along an axis: the same for all that lies across it. An
    index outside the axis, a negative one too, gives NaN and no gradient; of an integer
    `x` the least number (the greatest if unsigned), of a bool true.

    out[a, i, b] = x[a, indices[i], b]

    x: any dtype, at least one dimension.
    indices: int32 or int64, any shape, each in [0, size of the axis).
    axis: the axis that `indices` count along.
    """
    return one("gather", {"x": x, "indices": indices}, {"axis": axis}, name)


def take_along_axis(
    x: Variable,
    indices: Variable,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Variable:
    """What stands at `indices` along an axis, where everything that lies across it has
    indices of its own. An index outside the axis, a negative one too, gives NaN and no
    gradient; of an integer `x` the least number (the greatest if unsigned), of a bool
    true.

    out[a, i] = x[a, indices[a, i]]

    x: any dtype, at least one dimension.
    indices: int32 or int64, the shape of `x` but for the axis.
    axis: the axis that `indices` count along.
    """
    return one("take_along_axis", {"x": x, "indices": indices}, {"axis": axis}, name)


def one_hot(
    ids: Variable,
    classes: int,
    *,
    dtype: Dtype = "float32",
    name: str | None = None,
) -> Variable:
    """1 at the number of a class, 0 at the others, along a new last axis. A number
    outside [0, classes) gives zeros only.

    out[i, c] = 1 where ids[i] = c, else 0

    ids: integer, any shape.
    classes: the size of the new axis.
    dtype: of the result.
    """
    return one("one_hot", {"ids": ids}, {"classes": classes, "dtype": dtype}, name)


def top_k(
    x: Variable,
    k: int,
    *,
    out: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """The largest elements along the last axis, in order from the largest on, and where
    they stand; of equal ones the first comes first. The gradient goes through the
    values.

    values = x[indices], the k largest; dx[indices] = dvalues, 0 elsewhere

    x: float, at least one dimension.
    k: how many.

    Returns: `values`, `indices`.
    """
    return several("top_k", {"x": x}, {"k": k}, name, None, out)


def argmax(
    x: Variable,
    *,
    axis: int = -1,
    keepdims: bool = False,
    name: str | None = None,
) -> Variable:
    """Where the largest element stands along an axis; of equal ones the first counts,
    and NaN before any number. It has no gradient.

    out = argmax x

    x: float, at least one dimension.
    axis: the axis along which it is sought.
    keepdims: keep it as a dimension of 1.
    """
    return one("argmax", {"x": x}, {"axis": axis, "keepdims": keepdims}, name)


def argmin(
    x: Variable,
    *,
    axis: int = -1,
    keepdims: bool = False,
    name: str | None = None,
) -> Variable:
    """Where the least element stands along an axis; of equal ones the first counts, and
    NaN before any number. It has no gradient.

    out = argmin x

    x: float, at least one dimension.
    axis: the axis along which it is sought.
    keepdims: keep it as a dimension of 1.
    """
    return one("argmin", {"x": x}, {"axis": axis, "keepdims": keepdims}, name)


def reduce_sum(
    x: Variable,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Variable:
    """The sum over axes.

    out = Σ x

    x: float, any shape.
    axis: the axes that go; null: all of them.
    keepdims: keep them as dimensions of 1.
    """
    return one("reduce_sum", {"x": x}, {"axis": axis, "keepdims": keepdims}, name)


def reduce_mean(
    x: Variable,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Variable:
    """The mean over axes; over the batch it divides by the rows of the global batch.

    out = Σ x / n, n the number of elements that go into one

    x: float, any shape.
    axis: the axes that go; null: all of them.
    keepdims: keep them as dimensions of 1.
    """
    return one("reduce_mean", {"x": x}, {"axis": axis, "keepdims": keepdims}, name)


def reduce_max(
    x: Variable,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Variable:
    """The largest element over axes; NaN where there is one. Equal ones share the
    gradient evenly, as in JAX. Over the batch it is no sum: it needs the whole of it.

    out = max x; dx = dy / n where x = out, 0 elsewhere, n the number of such elements

    x: float, any shape.
    axis: the axes that go; null: all of them.
    keepdims: keep them as dimensions of 1.
    """
    return one("reduce_max", {"x": x}, {"axis": axis, "keepdims": keepdims}, name)


def reduce_min(
    x: Variable,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Variable:
    """The least element over axes; NaN where there is one. Equal ones share the
    gradient evenly, as in JAX. Over the batch it is no sum: it needs the whole of it.

    out = min x; dx = dy / n where x = out, 0 elsewhere, n the number of such elements

    x: float, any shape.
    axis: the axes that go; null: all of them.
    keepdims: keep them as dimensions of 1.
    """
    return one("reduce_min", {"x": x}, {"axis": axis, "keepdims": keepdims}, name)


def cumsum(
    x: Variable,
    *,
    axis: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
    name: str | None = None,
) -> Variable:
    """The sum of the elements along an axis up to each of them.

    out[i] = x[0] + … + x[i]

    x: float, at least one dimension.
    axis: the axis that is gone along.
    reverse: from the end to the beginning.
    exclusive: each sum without its own element.
    """
    return one(
        "cumsum",
        {"x": x},
        {"axis": axis, "reverse": reverse, "exclusive": exclusive},
        name,
    )


def einsum(
    xs: Sequence[Variable],
    equation: str,
    *,
    name: str | None = None,
) -> Variable:
    """The product of its operands, by letters for their dimensions, summed over those
    that the result leaves out; of more than two operands, left to right. The letter of
    the batch makes the batch rule: rows where it leads the result, a sum where the
    result leaves it out, the whole where operands have their rows under different
    letters.

    ij,jk->ik: out[i, k] = Σ_j xs[0][i, j] · xs[1][j, k]

    xs: float of one dtype; one or more.
    equation: letters for each operand, commas between, `->` and the result's letters;
        no letter twice in one of them.
    """
    return one("einsum", {"xs": xs}, {"equation": equation}, name)


def stop_gradient(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """A value as it is, and no gradient: what uses it takes it for given.

    out = x; dx = 0

    x: any dtype and shape.
    """
    return one("stop_gradient", {"x": x}, {}, name)


def softmax_cross_entropy(
    logits: Variable,
    label: Variable,
    *,
    reduce: Reduce = "mean",
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
    name: str | None = None,
) -> Variable:
    """The cross entropy of softmax(logits) against class numbers, without overflow for
    any finite logits. A label outside [0, classes) gives NaN. The mean divides by the
    rows, with class weights too; PyTorch divides by the sum of the rows' weights. For a
    weight of each row take `reduce: none`, `mul` and `reduce_mean`.

    loss = Σ q · (log Σ exp(logits) - logits), q = class_weights · ((1 -
        label_smoothing) · onehot(label) + label_smoothing / classes); dlogits =
        softmax(logits) · Σ q - q

    logits: float, [batch, …, classes].
    label: integer, [batch, …], each in [0, classes).
    reduce: what becomes of the losses: their mean, their sum, or none of it.
    label_smoothing: the share of a label that goes to all classes alike, from 0 to
        below 1.
    class_weights: what the loss of each class is multiplied by; none: all are 1.
    """
    return one(
        "softmax_cross_entropy",
        {"logits": logits, "label": label},
        {
            "reduce": reduce,
            "label_smoothing": label_smoothing,
            "class_weights": class_weights,
        },
        name,
    )


def sigmoid_cross_entropy(
    logits: Variable,
    label: Variable,
    *,
    reduce: Reduce = "mean",
    label_smoothing: float = 0.0,
    positive_weight: float = 1.0,
    name: str | None = None,
) -> Variable:
    """The cross entropy of sigmoid(logits) against labels in [0, 1], element by
    element, without overflow for any finite logits. The mean divides by the elements,
    with a weight of positives too.

    loss = positive_weight · t · log(1 + exp(-z)) + (1 - t) · log(1 + exp(z)), z the
        logits, t = (1 - label_smoothing) · label + label_smoothing / 2; dz = (1 - t) ·
        sigmoid(z) - positive_weight · t · sigmoid(-z); dlabel = -(1 - label_smoothing)
        · z without a weight

    logits: float, any shape.
    label: the same shape; an integer, or a float of the logits' dtype.
    reduce: what becomes of the losses: their mean, their sum, or none of it.
    label_smoothing: the share of a label that goes to all classes alike, from 0 to
        below 1.
    positive_weight: what the loss of a positive label is multiplied by.
    """
    return one(
        "sigmoid_cross_entropy",
        {"logits": logits, "label": label},
        {
            "reduce": reduce,
            "label_smoothing": label_smoothing,
            "positive_weight": positive_weight,
        },
        name,
    )


def hinge(
    prediction: Variable,
    label: Variable,
    *,
    reduce: Reduce = "mean",
    name: str | None = None,
) -> Variable:
    """How far a prediction is from being right by a margin of 1. A label above 0 is
    positive, any other negative: labels of 0 and 1 and of -1 and 1 both serve, as in
    Keras. The slope on the margin is 0, as that of relu.

    loss = max(1 - s · prediction, 0), s = 1 where label > 0, else -1

    prediction: float, any shape: positive for a positive label.
    label: integer, the same shape: 1 is positive, 0 and -1 are negative.
    reduce: what becomes of the losses: their mean, their sum, or none of it.
    """
    return one(
        "hinge",
        {"prediction": prediction, "label": label},
        {"reduce": reduce},
        name,
    )


def mean_squared_error(
    prediction: Variable,
    target: Variable,
    *,
    reduce: Reduce = "mean",
    name: str | None = None,
) -> Variable:
    """The square of the difference, element by element.

    loss = (prediction - target)²

    prediction: float, any shape.
    target: the same dtype and shape.
    reduce: what becomes of the losses: their mean, their sum, or none of it.
    """
    return one(
        "mean_squared_error",
        {"prediction": prediction, "target": target},
        {"reduce": reduce},
        name,
    )


def l1_loss(
    prediction: Variable,
    target: Variable,
    *,
    reduce: Reduce = "mean",
    name: str | None = None,
) -> Variable:
    """The magnitude of the difference, element by element: the mean absolute error as a
    loss. Where there is no difference there is no slope.

    loss = |prediction - target|

    prediction: float, any shape.
    target: the same dtype and shape.
    reduce: what becomes of the losses: their mean, their sum, or none of it.
    """
    return one(
        "l1_loss",
        {"prediction": prediction, "target": target},
        {"reduce": reduce},
        name,
    )


def huber(
    prediction: Variable,
    target: Variable,
    *,
    reduce: Reduce = "mean",
    delta: float = 1.0,
    name: str | None = None,
) -> Variable:
    """Half the square of a difference up to `delta`, and a line beyond it.

    loss = c · (d - c / 2), d = prediction - target, c = min(max(d, -delta), delta);
        dprediction = c

    prediction: float, any shape.
    target: the same dtype and shape.
    reduce: what becomes of the losses: their mean, their sum, or none of it.
    delta: the difference where the line begins.
    """
    return one(
        "huber",
        {"prediction": prediction, "target": target},
        {"reduce": reduce, "delta": delta},
        name,
    )


def kl_div(
    log_prediction: Variable,
    target: Variable,
    *,
    reduce: Reduce = "mean",
    name: str | None = None,
) -> Variable:
    """The Kullback-Leibler divergence of a target distribution from a predicted one,
    summed over the last dimension, so that the mean is over all others: of [batch,
    classes] it is PyTorch's `batchmean`. A class of target 0 counts nothing.

    loss = Σ target · (log target - log_prediction); dlog_prediction = -target; dtarget
        = log target + 1 - log_prediction, without log target + 1 where it is 0

    log_prediction: float, [batch, …, classes]: logarithms, of log_softmax.
    target: the same dtype and shape: probabilities.
    reduce: what becomes of the losses: their mean, their sum, or none of it.
    """
    return one(
        "kl_div",
        {"log_prediction": log_prediction, "target": target},
        {"reduce": reduce},
        name,
    )


def cosine_similarity(
    a: Variable,
    b: Variable,
    *,
    axis: int = -1,
    epsilon: float = 1e-08,
    name: str | None = None,
) -> Variable:
    """The cosine of the angle between vectors along an axis, which goes. A vector
    shorter than `epsilon` counts as that long, so that one of zeros gives 0 and a
    finite slope. For a loss take `negative` and `reduce_mean`.

    out = Σ u · v, u = a / max(|a|, epsilon), v = b / max(|b|, epsilon); da = dy · (v -
        out · u) / |a|

    a: float, at least one dimension.
    b: the same dtype and shape.
    axis: along which the vectors lie.
    epsilon: the least length, at least 2^-14 in float16.
    """
    return one(
        "cosine_similarity",
        {"a": a, "b": b},
        {"axis": axis, "epsilon": epsilon},
        name,
    )


def accuracy(
    logits: Variable,
    label: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The share of rows whose largest logit is the label's; of equal ones the first
    counts. A label outside [0, classes) is never right, a NaN among the logits makes
    the accuracy NaN.

    Σ [argmax logits = label] / rows

    logits: float, [batch, …, classes].
    label: integer, [batch, …], each in [0, classes).

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one("accuracy", {"logits": logits, "label": label}, {}, name)


def top_k_accuracy(
    logits: Variable,
    label: Variable,
    k: int,
    *,
    name: str | None = None,
) -> Variable:
    """The share of rows in which fewer than k logits stand before the label's: greater
    ones, and equal ones of lower classes, so that k = 1 is accuracy. A label outside
    [0, classes) is never right, a NaN among the logits makes it NaN.

    Σ [label is among the k classes with the largest logits] / rows

    logits: float, [batch, …, classes].
    label: integer, [batch, …], each in [0, classes).
    k: how many classes are looked at.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one("top_k_accuracy", {"logits": logits, "label": label}, {"k": k}, name)


def precision(
    prediction: Variable,
    label: Variable,
    *,
    threshold: float = 0.5,
    logits: bool = False,
    class_id: int | None = None,
    name: str | None = None,
) -> Variable:
    """The share of true positives among the predicted ones; NaN where none is predicted
    or a prediction is NaN.

    Σ [predicted and positive] / Σ [predicted]

    prediction: float, any shape: the probability of a positive; with `class_id`, logits
        [batch, …, classes].
    label: the same shape, a number above 0.5 is a positive; with `class_id`, integer
        [batch, …].
    threshold: the probability above which a prediction is positive.
    logits: predictions are logits of the probabilities.
    class_id: the class that is positive, all others are negative: predicted is the
        largest logit's, of equal ones the first.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one(
        "precision",
        {"prediction": prediction, "label": label},
        {"threshold": threshold, "logits": logits, "class_id": class_id},
        name,
    )


def recall(
    prediction: Variable,
    label: Variable,
    *,
    threshold: float = 0.5,
    logits: bool = False,
    class_id: int | None = None,
    name: str | None = None,
) -> Variable:
    """The share of positives that are predicted; NaN where there is none or a
    prediction is NaN.

    Σ [predicted and positive] / Σ [positive]

    prediction: float, any shape: the probability of a positive; with `class_id`, logits
        [batch, …, classes].
    label: the same shape, a number above 0.5 is a positive; with `class_id`, integer
        [batch, …].
    threshold: the probability above which a prediction is positive.
    logits: predictions are logits of the probabilities.
    class_id: the class that is positive, all others are negative: predicted is the
        largest logit's, of equal ones the first.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one(
        "recall",
        {"prediction": prediction, "label": label},
        {"threshold": threshold, "logits": logits, "class_id": class_id},
        name,
    )


def f1(
    prediction: Variable,
    label: Variable,
    *,
    threshold: float = 0.5,
    logits: bool = False,
    class_id: int | None = None,
    name: str | None = None,
) -> Variable:
    """The harmonic mean of precision and recall; NaN where nothing is predicted and
    nothing positive, or a prediction is NaN.

    2 · Σ [predicted and positive] / (Σ [predicted] + Σ [positive])

    prediction: float, any shape: the probability of a positive; with `class_id`, logits
        [batch, …, classes].
    label: the same shape, a number above 0.5 is a positive; with `class_id`, integer
        [batch, …].
    threshold: the probability above which a prediction is positive.
    logits: predictions are logits of the probabilities.
    class_id: the class that is positive, all others are negative: predicted is the
        largest logit's, of equal ones the first.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one(
        "f1",
        {"prediction": prediction, "label": label},
        {"threshold": threshold, "logits": logits, "class_id": class_id},
        name,
    )


def auc(
    prediction: Variable,
    label: Variable,
    *,
    bins: int = 4096,
    logits: bool = False,
    name: str | None = None,
) -> Variable:
    """The area under the receiver operating characteristic, from a histogram: exact
    where predictions are multiples of 1 / (bins - 1); others count as the nearest of
    these. NaN where only one class is there, or where a prediction is NaN or outside
    [0, 1].

    P(prediction of a positive > that of a negative) + ½ P(they are equal)

    prediction: float, any shape: the probability of a positive.
    label: the same shape; a number above 0.5 is a positive.
    bins: how many predictions are told apart: k / (bins - 1) for k from 0 to bins - 1,
        by default k / 4095.
    logits: predictions are logits, sigmoid is taken.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one(
        "auc",
        {"prediction": prediction, "label": label},
        {"bins": bins, "logits": logits},
        name,
    )


def mean_absolute_error(
    prediction: Variable,
    target: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The mean of the absolute difference over all elements.

    Σ |prediction - target| / n

    prediction: float, any shape.
    target: the same dtype and shape.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one(
        "mean_absolute_error",
        {"prediction": prediction, "target": target},
        {},
        name,
    )


def root_mean_squared_error(
    prediction: Variable,
    target: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The root of the mean squared difference over all elements, of an epoch or an
    evaluation too: not the mean of the roots of its batches.

    √(Σ (prediction - target)² / n)

    prediction: float, any shape.
    target: the same dtype and shape.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one(
        "root_mean_squared_error",
        {"prediction": prediction, "target": target},
        {},
        name,
    )


def mean_metric(
    x: Variable,
    *,
    name: str | None = None,
) -> Variable:
    """The mean of all elements, watched; `reduce_mean` is the one to compute with.

    Σ x / n

    x: float, any shape.

    A metric: the program's `metrics` name it, and no op takes it.
    """
    return one("mean", {"x": x}, {}, name)


def constant(
    value: bool | float,
    *,
    dtype: str = "float32",
    shape: Sequence[int] = (),
    name: str | None = None,
) -> Variable:
    """One number, everywhere in a shape. It is never sent: each place makes its own.
    The compiler makes the loss's own gradient with it.

    out = value

    value: the number.
    dtype: of the result; int64, uint64 and float64 need the spec's precision to be
        float64.
    shape: of the result.
    """
    return one("constant", {}, {"value": value, "dtype": dtype, "shape": shape}, name)


def dropout(
    x: Variable,
    rate: float,
    *,
    name: str | None = None,
) -> Variable:
    """In training, each element is 0 with probability `rate`, and the others are
    divided by what is left, 1 - rate; in evaluation, x as it is. The mask is a function
    of the spec's seed, the op's name, the step and the row's number in the global
    batch, so it does not depend on where a row is computed.

    out = x / (1 - rate) where the element's bits say so, else 0

    x: float, [batch, …].
    rate: the probability of a zero.
    """
    return one("dropout", {"x": x}, {"rate": rate}, name)


def batch_norm(
    x: Variable,
    *,
    momentum: float = 0.99,
    epsilon: float = 1e-05,
    scope: Literal["batch", "replica"] = "batch",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """Each channel with mean 0 and variance 1 over the *global* batch and all other
    dimensions, then scaled and shifted. Places add up their sums, forward and backward,
    so the statistics do not depend on the placement. `running_mean` and
    `running_variance` follow them, and stand in their place in evaluation.

    out = scale · (x - mean) / √(variance + epsilon) + bias; running = momentum ·
        running + (1 - momentum) · new

    x: float, [batch, …, channels].
    momentum: what stays of a running value in a step.
    epsilon: added to the variance.
    scope: whose statistics: the global batch's, or those of the rows that each place
        has, which is cheaper and depends on how many places there are.

    Parameters: `scale`, `bias`, `running_mean`, `running_variance`.
    """
    return one(
        "batch_norm",
        {"x": x},
        {"momentum": momentum, "epsilon": epsilon, "scope": scope},
        name,
        params,
    )


def nce(
    x: Variable,
    label: Variable,
    classes: int,
    num_sampled: int,
    *,
    sampler: Sampler = "log_uniform",
    remove_accidental_hits: bool = False,
    reduce: Reduce = "mean",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """Noise-contrastive estimation over many classes: a row's own class against
    `num_sampled` that are drawn for it, with replacement. It makes its parameters `w`
    and `b`. What is drawn is a function of the spec's seed, the op's name, the step and
    the row's number in the global batch, so it does not depend on where a row is
    computed; an evaluation draws, too.

    see nce_loss

    x: float, [batch, size].
    label: integer, [batch], each in [0, classes).
    classes: how many there are.
    num_sampled: how many are drawn for a row.
    sampler: how likely each class is to be drawn: `log_uniform`, log((c + 2) / (c + 1))
        / log(classes + 1), as words numbered by falling frequency are, or all alike.
    remove_accidental_hits: leave out what was drawn and is the row's own class.
    reduce: what becomes of the losses: their mean, their sum, or none of it.

    Parameters: `w`, `b`.
    """
    return one(
        "nce",
        {"x": x, "label": label},
        {
            "classes": classes,
            "num_sampled": num_sampled,
            "sampler": sampler,
            "remove_accidental_hits": remove_accidental_hits,
            "reduce": reduce,
        },
        name,
        params,
    )


def sampled_softmax(
    x: Variable,
    label: Variable,
    classes: int,
    num_sampled: int,
    *,
    sampler: Sampler = "log_uniform",
    remove_accidental_hits: bool = True,
    reduce: Reduce = "mean",
    params: Params = None,
    name: str | None = None,
) -> Variable:
    """The cross entropy of softmax over many classes, estimated by a row's own class
    and `num_sampled` that are drawn for it, with replacement. It makes its parameters
    `w` and `b`. What is drawn is a function of the spec's seed, the op's name, the step
    and the row's number in the global batch, so it does not depend on where a row is
    computed; an evaluation draws, too.

    see sampled_softmax_loss

    x: float, [batch, size].
    label: integer, [batch], each in [0, classes).
    classes: how many there are.
    num_sampled: how many are drawn for a row.
    sampler: how likely each class is to be drawn: `log_uniform`, log((c + 2) / (c + 1))
        / log(classes + 1), as words numbered by falling frequency are, or all alike.
    remove_accidental_hits: leave out what was drawn and is the row's own class.
    reduce: what becomes of the losses: their mean, their sum, or none of it.

    Parameters: `w`, `b`.
    """
    return one(
        "sampled_softmax",
        {"x": x, "label": label},
        {
            "classes": classes,
            "num_sampled": num_sampled,
            "sampler": sampler,
            "remove_accidental_hits": remove_accidental_hits,
            "reduce": reduce,
        },
        name,
        params,
    )
