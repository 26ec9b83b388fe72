"""simple_rnn, gru, lstm: layers that carry a state along a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from placer.errors import OpError
from placer.ops.common.checks import each_row, need_float, need_integer
from placer.ops.common.roles import by_name, need_shapes
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    LayerParameter,
    Operand,
    Types,
)
from placer.types import BATCH, Dim, TensorType


@dataclass(frozen=True, slots=True)
class _Kind:
    """What sets one kind apart.

    `states` begin with the hidden state h, a [size] of each row. `gates` counts the
    [size] that a step adds up, `kept` those of a step that backward needs beside the
    states, `forward` and `backward` the elementwise operations for one number of h,
    biases and lengths apart.
    """

    states: tuple[str, ...]
    gates: int
    biases: tuple[str, ...]
    kept: int
    forward: int
    backward: int


_KINDS = {
    "simple_rnn": _Kind(("state",), 1, ("b",), 0, 2, 5),
    "gru": _Kind(("state",), 3, ("b", "b_recurrent"), 4, 10, 19),
    "lstm": _Kind(("state", "cell"), 4, ("b",), 4, 14, 26),
}


def roles(kind: str, types: Types) -> tuple[str, ...]:
    """The names of the operands that are given; OpError when they are none of `kind`.

    Biases are there when the last is of rank 1, the lengths are an operand before the
    weights that is not float, and the states are what else stands between x and those.
    """
    known = _KINDS[kind]
    biased = bool(types) and types[-1].rank == 1
    weights = ("w_input", "w_recurrent", *(known.biases if biased else ()))
    return (
        *_before_weights(kind, types[: max(len(types) - len(weights), 0)]),
        *weights,
    )


def _before_weights(kind: str, types: Types) -> tuple[str, ...]:
    states = _KINDS[kind].states
    told = len(types) > 1 and not types[-1].is_float
    count = len(types) - told - 1
    if count not in (0, len(states)):
        raise OpError(
            f"{kind} takes x, then {' and '.join(states)} or not, then lengths or not;"
            f" given are {', '.join(map(str, types)) or 'none'}"
        )
    return ("x", *states[:count], *(("lengths",) if told else ()))


def _sizes(kind: str, x: TensorType) -> tuple[Dim, int, int]:
    """Rows, steps, and inputs of a step; OpError when x is no sequence."""
    need_float(kind, "x", (x,), 0)
    if x.rank != 3 or BATCH in x.shape[1:]:
        raise OpError(
            f"{kind} needs a sequence [batch, time, in], 'x' is {x}",
            operand=0,
            hint="reshape it to [batch, time, 1]" if x.rank == 2 else None,
        )
    rows, time, width = x.shape
    return rows, int(time), int(width)


def _size(kind: str, types: Types) -> int:
    """The length of h."""
    w = by_name(roles(kind, types), types)["w_recurrent"]
    return int(w.shape[0]) if w.rank and w.shape[0] != BATCH else 1


def _infer(kind: str, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    known, names = _KINDS[kind], roles(kind, types)
    rows, time, width = _sizes(kind, types[0])
    if "lengths" in names:
        _check_lengths(kind, names.index("lengths"), types)
    size = _size(kind, types)
    gates = known.gates * size
    shapes = {
        "w_recurrent": (size, gates),
        "w_input": (width, gates),
        "b": (gates,),
        "b_recurrent": (size,),
        **dict.fromkeys(known.states, (rows, size)),
    }
    need_shapes(kind, names, types, shapes)
    dtype = types[0].dtype
    h = TensorType(dtype, (rows, size))
    return (TensorType(dtype, (rows, time, size)), *[h] * len(known.states))


def _check_lengths(kind: str, index: int, types: Types) -> None:
    need_integer(kind, "lengths", types, index)
    x, lengths = types[0], types[index]
    if lengths.shape != x.shape[:1]:
        raise OpError(
            f"{kind} needs 'lengths' [{x.shape[0]}] for 'x' {x}, 'lengths' is {lengths}",
            operand=index,
        )


def _parameters(kind: str, types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    known, size = _KINDS[kind], attrs["size"]
    _before_weights(kind, types)
    *_, width = _sizes(kind, types[0])
    if size < 1:
        raise OpError(f"{kind} needs a size of at least 1, not {size}", attr="size")
    gates, dtype = known.gates * size, types[0].dtype
    weights = (
        LayerParameter("w_input", TensorType(dtype, (width, gates)), "xavier_uniform"),
        LayerParameter("w_recurrent", TensorType(dtype, (size, gates)), "orthogonal"),
    )
    lengths = {"b": gates, "b_recurrent": size}
    biases = (
        LayerParameter(name, TensorType(dtype, (lengths[name],)), "zeros")
        for name in known.biases
    )
    return (*weights, *biases) if attrs["bias"] else weights


def _saves(kind: str, types: Types, attrs: Attrs) -> tuple[int, ...]:
    names = roles(kind, types)
    return tuple(i for i, name in enumerate(names) if name not in _KINDS[kind].biases)


def _residuals(kind: str, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    known = _KINDS[kind]
    sequence, *_ = _infer(kind, types, attrs)
    return (sequence,) * (len(known.states) + known.kept)


def _products(kind: str, types: Types) -> tuple[int, int, int]:
    """Operations of the input's product and of the states', over all steps; and the
    numbers of h in them."""
    rows, time, width = _sizes(kind, types[0])
    size = _size(kind, types)
    numbers = int(rows) * time * size
    gates = _KINDS[kind].gates * size
    return 2 * int(rows) * time * width * gates, 2 * numbers * gates, numbers


def _flops(kind: str, types: Types, attrs: Attrs) -> int:
    known, names = _KINDS[kind], roles(kind, types)
    of_input, of_states, numbers = _products(kind, types)
    each = known.forward
    each += known.gates if "b" in names else 0
    each += 1 if "b_recurrent" in names else 0
    each += len(known.states) if "lengths" in names else 0
    return of_input + of_states + each * numbers


def _grad_flops(kind: str, types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    if not wrt:
        return 0
    known, names = _KINDS[kind], roles(kind, types)
    of_input, of_states, numbers = _products(kind, types)
    wanted = {names[i] for i in wrt}
    products = of_input * len(wanted & {"x", "w_input"})
    products += of_states * (1 + ("w_recurrent" in wanted))
    each = known.backward
    each += known.gates * ("b" in wanted) + ("b_recurrent" in wanted)
    each += (known.gates + len(known.states)) * ("lengths" in names)
    return products + each * numbers


_X = Operand("x", "float, [batch, time, in]")
_STATE = Operand(
    "state",
    "the same dtype, [batch, size]: the hidden state before the first step, else 0",
    optional=True,
)
_CELL = Operand(
    "cell",
    "the same dtype, [batch, size]: the cell state before the first step; given with"
    " `state`",
    optional=True,
)
_LENGTHS = Operand(
    "lengths",
    "integer, [batch]: the steps of each row; at those behind them its states stay as"
    " they are, which `sequence` repeats",
    optional=True,
)


def _weight(name: str, doc: str) -> Operand:
    return Operand(name, f"the same dtype, {doc}", parameter=True)


def _bias(name: str, doc: str) -> Operand:
    return Operand(name, f"the same dtype, {doc}", optional=True, parameter=True)


_SIZE = Attr("size", int, "the length of the state", required=True, build=True)
_BIAS = Attr("bias", bool, "whether there are biases", default=True, build=True)
_REVERSE = Attr(
    "reverse",
    bool,
    "from the last step to the first; `sequence` stands in the order of x all the same,"
    " `last` is the state at the first step",
    default=False,
)


def _layer(
    kind: str,
    doc: str,
    operands: tuple[Operand, ...],
    attrs: tuple[Attr, ...],
    formula: str,
    source: str,
    cases: tuple[Case, ...],
) -> Declaration:
    _, *cell = _KINDS[kind].states
    return Declaration(
        kind,
        doc,
        operands,
        partial(_infer, kind),
        each_row,
        partial(_flops, kind),
        partial(_grad_flops, kind),
        attrs=(_SIZE, _BIAS, *attrs, _REVERSE),
        results=("sequence", "last", *cell),
        roles=partial(roles, kind),
        saves=partial(_saves, kind),
        residuals=partial(_residuals, kind),
        parameters=partial(_parameters, kind),
        formula=formula,
        source=source,
        cases=cases,
        example=f"{{name: h, op: {kind}, in: x, size: 128}}",
    )


SIMPLE_RNN = _layer(
    "simple_rnn",
    "A layer that carries its own result from step to step. It gives the states after"
    " each step as `sequence` and the one after the last as `last`.",
    (
        _X,
        _STATE,
        _LENGTHS,
        _weight("w_input", "[in, size]"),
        _weight("w_recurrent", "[size, size]"),
        _bias("b", "[size]"),
    ),
    (
        Attr(
            "activation",
            str,
            "of the state; the slope of relu at 0 is 0",
            default="tanh",
            choices=("tanh", "relu"),
        ),
    ),
    "h[t] = activation(x[t] · w_input + h[t-1] · w_recurrent + b)",
    "Elman (1990). `w_input` begins as Glorot and Bengio (2010) have it, `w_recurrent`"
    " orthogonal (Saxe et al. 2014), `b` at 0, as in Keras",
    (
        Case(("float32[batch, 20, 8]", "float32[8, 16]", "float32[16, 16]")),
        Case(
            (
                "float32[batch, 20, 8]",
                "int32[batch]",
                "float32[8, 16]",
                "float32[16, 16]",
                "float32[16]",
            ),
            {"activation": "relu"},
        ),
    ),
)

GRU = _layer(
    "gru",
    "A gated recurrent layer. Of the numbers of `w_input`, `w_recurrent` and `b` the"
    " first third is of the reset gate, then come the update gate and the candidate.",
    (
        _X,
        _STATE,
        _LENGTHS,
        _weight("w_input", "[in, 3 · size]"),
        _weight("w_recurrent", "[size, 3 · size]"),
        _bias("b", "[3 · size]"),
        _bias("b_recurrent", "[size], of the candidate's part of the state"),
    ),
    (),
    "r, u = sigmoid(x[t] · w_input + h[t-1] · w_recurrent + b), their thirds;"
    " n = tanh(x[t] · w_input + b + r · (h[t-1] · w_recurrent + b_recurrent)), their last"
    " thirds; h[t] = (1 - u) · n + u · h[t-1]",
    "Cho et al. (2014) in the form of cuDNN, torch and Keras (`reset_after`): the reset"
    " gate acts after the product. The order of the gates is torch's, whose biases of"
    " the state for the other gates, which only add to `b`, are left out, as in Flax."
    " Initial values as in simple_rnn",
    (
        Case(
            (
                "float32[batch, 20, 8]",
                "float32[8, 48]",
                "float32[16, 48]",
                "float32[48]",
                "float32[16]",
            )
        ),
    ),
)

LSTM = _layer(
    "lstm",
    "A recurrent layer with a cell that is written, kept and read through gates. Of the"
    " numbers of `w_input`, `w_recurrent` and `b` the first quarter is of the input gate,"
    " then come the forget gate, the candidate and the output gate. It gives the cell"
    " after the last step too.",
    (
        _X,
        _STATE,
        _CELL,
        _LENGTHS,
        _weight("w_input", "[in, 4 · size]"),
        _weight("w_recurrent", "[size, 4 · size]"),
        _bias("b", "[4 · size]"),
    ),
    (
        Attr(
            "forget_bias",
            float,
            "added to the forget gate beside `b`, so that a new layer remembers",
            default=1.0,
        ),
    ),
    "i, f, g, o = x[t] · w_input + h[t-1] · w_recurrent + b, its quarters; c[t] ="
    " sigmoid(f + forget_bias) · c[t-1] + sigmoid(i) · tanh(g); h[t] = sigmoid(o) ·"
    " tanh(c[t])",
    "Hochreiter and Schmidhuber (1997), Gers et al. (2000). The order of the gates is"
    " that of Keras and torch; `forget_bias` as in TensorFlow's BasicLSTMCell, which is"
    " Keras's `unit_forget_bias` without a vector that begins in two ways"
    " (Jozefowicz et al. 2015). Initial values as in simple_rnn",
    (
        Case(
            (
                "float32[batch, 20, 8]",
                "float32[8, 64]",
                "float32[16, 64]",
                "float32[64]",
            )
        ),
        Case(
            (
                "float32[batch, 20, 8]",
                "float32[batch, 16]",
                "float32[batch, 16]",
                "int32[batch]",
                "float32[8, 64]",
                "float32[16, 64]",
                "float32[64]",
            ),
            {"reverse": True},
        ),
    ),
)

DECLARATIONS = (SIMPLE_RNN, GRU, LSTM)
