"""simple_rnn, gru and lstm: recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from placer.ops.common.checks import check_attr
from placer.ops.common.roles import make_parameters, name_operands, require_shapes
from placer.ops.declaration import (
    Attr,
    Attrs,
    Declaration,
    LayerParameter,
    case,
    choice,
    flag,
    layer_size,
)
from placer.ops.operand import (
    Operand,
    Types,
    operand_error,
    require_float,
    require_integer,
)
from placer.place.types import BATCH, Dim, TensorType
from placer.plan.settings.training.initializers import Init


@dataclass(frozen=True, slots=True)
class CellKind:
    """The properties of one kind of recurrent layer.

    Attributes:
        states: the names of its states; the first is the hidden state h.
        gates: the number of gates; each is an array [rows, size] per step.
        kept: the number of other such arrays that the backward needs.
        forward: elementwise operations per element of h and step, without biases and
            lengths.
        backward: the same for the backward.
    """

    states: tuple[str, ...]
    gates: int
    biases: tuple[str, ...]
    kept: int
    forward: int
    backward: int


CELL_KINDS = {
    "simple_rnn": CellKind(("state",), 1, ("b",), 0, 2, 5),
    "gru": CellKind(("state",), 3, ("b", "b_recurrent"), 4, 10, 19),
    "lstm": CellKind(("state", "cell"), 4, ("b",), 4, 14, 26),
}

_WEIGHTS = ("w_input", "w_recurrent")


def operand_names(
    cell: CellKind, types: Types, weighted: bool = True
) -> tuple[str, ...]:
    """Return the names of the operands; raise OpError if they are invalid.

    The last operand is a bias if it has rank 1. The last operand between x and the
    weights is `lengths` if it is not float; the others are states. If not `weighted`,
    the operands do not include parameters yet.
    """
    states = cell.states
    return name_operands(
        f"needs x, then optionally {' and '.join(states)}, then optionally lengths",
        ("x", *states),
        (1, 1 + len(states)),
        "lengths",
        types,
        *((_WEIGHTS, (*_WEIGHTS, *cell.biases)) if weighted else ()),
    )


def _sizes(x: TensorType) -> tuple[Dim, int, int]:
    """Return rows, steps and width of x; raise OpError if x is not a sequence."""
    require_float("x", (x,), 0)
    if x.rank != 3 or BATCH in x.shape[1:]:
        hint = "reshape it to [batch, time, 1]" if x.rank == 2 else None
        raise operand_error((x,), 0, "x", "a sequence [batch, time, in]", hint)
    rows, time, width = x.shape
    return rows, int(time), int(width)


def _size(cell: CellKind, types: Types) -> int:
    w = dict(zip(operand_names(cell, types), types, strict=True))["w_recurrent"]
    return int(w.shape[0]) if w.rank and w.shape[0] != BATCH else 1


def _infer(cell: CellKind, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    names = operand_names(cell, types)
    rows, time, width = _sizes(types[0])
    if "lengths" in names:
        _check_lengths(names.index("lengths"), types)
    size = _size(cell, types)
    require_shapes(names, types, _shapes(cell, rows, width, size))
    dtype = types[0].dtype
    h = TensorType(dtype, (rows, size))
    return (TensorType(dtype, (rows, time, size)), *[h] * len(cell.states))


def _shapes(
    cell: CellKind, rows: Dim, width: int, size: int
) -> dict[str, tuple[Dim, ...]]:
    gates = cell.gates * size
    return {
        "w_input": (width, gates),
        "w_recurrent": (size, gates),
        "b": (gates,),
        "b_recurrent": (size,),
        **dict.fromkeys(cell.states, (rows, size)),
    }


def _check_lengths(index: int, types: Types) -> None:
    require_integer("lengths", types, index)
    x, lengths = types[0], types[index]
    if lengths.shape != x.shape[:1]:
        needed = f"'lengths' [{x.shape[0]}] for 'x' {x}"
        raise operand_error(types, index, "lengths", needed)


def _parameters(
    cell: CellKind, types: Types, attrs: Attrs
) -> tuple[LayerParameter, ...]:
    size = attrs["size"]
    operand_names(cell, types, weighted=False)
    *_, width = _sizes(types[0])
    check_attr(attrs, "size", size >= 1, "a size of at least 1")
    shapes = _shapes(cell, BATCH, width, size)
    names = (*_WEIGHTS, *cell.biases) if attrs["bias"] else _WEIGHTS
    initializers: dict[str, Init] = {
        "w_input": "xavier_uniform",
        "w_recurrent": "orthogonal",
    }
    created = {name: shapes[name] for name in names}
    return make_parameters(types[0].dtype, created, initializers)


def _saves(cell: CellKind, types: Types, attrs: Attrs) -> tuple[int, ...]:
    names = operand_names(cell, types)
    return tuple(i for i, name in enumerate(names) if name not in cell.biases)


def _residuals(cell: CellKind, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    sequence, *_ = _infer(cell, types, attrs)
    return (sequence,) * (len(cell.states) + cell.kept)


def _products(cell: CellKind, types: Types) -> tuple[int, int, int]:
    """Return the operations of both products, and the elements of h, over all steps."""
    rows, time, width = _sizes(types[0])
    size = _size(cell, types)
    elements = int(rows) * time * size
    gates = cell.gates * size
    return 2 * int(rows) * time * width * gates, 2 * elements * gates, elements


def _flops(cell: CellKind, types: Types, attrs: Attrs) -> int:
    names = operand_names(cell, types)
    input_flops, state_flops, elements = _products(cell, types)
    per_element = cell.forward + len(cell.states) * ("lengths" in names)
    per_element += cell.gates * ("b" in names) + ("b_recurrent" in names)
    return input_flops + state_flops + per_element * elements


def _grad_flops(cell: CellKind, types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    if not wrt:
        return 0
    names = operand_names(cell, types)
    input_flops, state_flops, elements = _products(cell, types)
    wrt_names = {names[i] for i in wrt}
    products = input_flops * len(wrt_names & {"x", "w_input"})
    products += state_flops * (1 + ("w_recurrent" in wrt_names))
    per_element = cell.backward
    per_element += cell.gates * ("b" in wrt_names) + ("b_recurrent" in wrt_names)
    per_element += (cell.gates + len(cell.states)) * ("lengths" in names)
    return products + per_element * elements


_X = Operand("x", "float, [batch, time, in]")
_STATE = Operand(
    "state",
    "the same dtype, [batch, size]: the initial hidden state; 0 by default",
    optional=True,
)
_CELL = Operand(
    "cell",
    "the same dtype, [batch, size]: the initial cell state, only with `state`; 0"
    " by default",
    optional=True,
)
_LENGTHS = Operand(
    "lengths",
    "integer, [batch]: the number of steps of each row; after these steps its"
    " states stay unchanged, and `sequence` repeats them",
    optional=True,
)


def _operands(cell: CellKind) -> tuple[Operand, ...]:
    gates = "size" if cell.gates == 1 else f"{cell.gates} · size"
    docs = {
        "w_input": f"[in, {gates}]",
        "w_recurrent": f"[size, {gates}]",
        "b": f"[{gates}]",
        "b_recurrent": "[size]: added to the candidate's part of h · w_recurrent",
    }
    parameters = (
        Operand(
            name, f"the same dtype, {docs[name]}", name in cell.biases, parameter=True
        )
        for name in (*_WEIGHTS, *cell.biases)
    )
    return (_X, *(_STATE, _CELL)[: len(cell.states)], _LENGTHS, *parameters)


_SIZE = layer_size("size", int, "the size of the state", 128)
_BIAS = flag("bias", "whether to add biases", default=True, for_parameters=True)
_REVERSE = flag(
    "reverse",
    "whether to process the sequence from the last step to the first. `sequence`"
    " keeps the order of x; `last` is the state after the first step of x",
)


def _declare(kind: str, doc: str, *attrs: Attr, **fields: Any) -> Declaration:
    cell = CELL_KINDS[kind]
    return Declaration(
        kind,
        doc,
        _operands(cell),
        partial(_infer, cell),
        flops=partial(_flops, cell),
        grad_flops=partial(_grad_flops, cell),
        attrs=(_SIZE, _BIAS, *attrs, _REVERSE),
        results=("sequence", "last", *cell.states[1:]),
        operand_names=partial(operand_names, cell),
        saves=partial(_saves, cell),
        residuals=partial(_residuals, cell),
        creates=partial(_parameters, cell),
        **fields,
    )


SIMPLE_RNN = _declare(
    "simple_rnn",
    "Simple recurrent layer (Elman network; Keras' SimpleRNN). Returns"
    " `sequence`, the states after each step, [batch, time, size], and `last`,"
    " the state after the last step. Creates the parameters `w_input`,"
    " `w_recurrent` and `b`.",
    choice(
        "activation",
        "the activation function; the derivative of relu at 0 is 0",
        ("tanh", "relu"),
    ),
    formula="h[t] = activation(x[t] · w_input + h[t-1] · w_recurrent + b)",
    source="Elman (1990); initial values as in Keras: `w_input` by Glorot and Bengio"
    " (2010), `w_recurrent` orthogonal (Saxe et al. 2014), `b` 0",
    cases=(
        case("float32[batch, 20, 8], float32[8, 16], float32[16, 16]"),
        case(
            "float32[batch, 20, 8], int32[batch],"
            " float32[8, 16], float32[16, 16], float32[16]",
            activation="relu",
        ),
    ),
)

GRU = _declare(
    "gru",
    "Gated recurrent unit (GRU). Returns `sequence`, the states after each step,"
    " [batch, time, size], and `last`, the state after the last step. The columns"
    " of `w_input`, `w_recurrent` and `b` are three blocks: reset gate, update"
    " gate and candidate. Creates the parameters `w_input`, `w_recurrent`, `b`"
    " and `b_recurrent`.",
    formula="r, u = sigmoid(x[t] · w_input + h[t-1] · w_recurrent + b), the first two"
    " thirds; n = tanh(x[t] · w_input + b + r · (h[t-1] · w_recurrent + b_recurrent)),"
    " the last third; h[t] = (1 - u) · n + u · h[t-1]",
    source="Cho et al. (2014), in the variant of cuDNN, PyTorch and Keras"
    " (`reset_after`): the reset gate is applied after the product. The order of"
    " the gates is PyTorch's. As in Flax, the other gates have no recurrent bias,"
    " because it would only add to `b`. Initial values as in simple_rnn",
    cases=(
        case(
            "float32[batch, 20, 8],"
            " float32[8, 48], float32[16, 48], float32[48], float32[16]"
        ),
    ),
)

LSTM = _declare(
    "lstm",
    "Long short-term memory layer (LSTM). Returns `sequence`, the hidden states"
    " after each step, [batch, time, size], and the hidden state `last` and the"
    " cell state `cell` after the last step. The columns of `w_input`,"
    " `w_recurrent` and `b` are four blocks: input gate, forget gate, candidate"
    " and output gate. Creates the parameters `w_input`, `w_recurrent` and `b`.",
    Attr(
        "forget_bias",
        float,
        "added to the forget gate in addition to `b`, so that the untrained layer"
        " keeps its cell state",
        default=1.0,
    ),
    formula="i, f, g, o = the quarters of x[t] · w_input + h[t-1] · w_recurrent + b;"
    " c[t] = sigmoid(f + forget_bias) · c[t-1] + sigmoid(i) · tanh(g); h[t] ="
    " sigmoid(o) · tanh(c[t])",
    source="Hochreiter and Schmidhuber (1997), Gers et al. (2000). The order of the"
    " gates is as in Keras and PyTorch. `forget_bias` is from TensorFlow's"
    " BasicLSTMCell, and replaces Keras' `unit_forget_bias` (Jozefowicz et al."
    " 2015). Initial values as in simple_rnn",
    cases=(
        case("float32[batch, 20, 8], float32[8, 64], float32[16, 64], float32[64]"),
        case(
            "float32[batch, 20, 8], float32[batch, 16], float32[batch, 16],"
            " int32[batch], float32[8, 64], float32[16, 64], float32[64]",
            reverse=True,
        ),
    ),
)
