"""call: any JAX function of a module that stands beside the spec.

What JAX alone knows of the function, `placer.tracing` finds out when the spec is
compiled, and the graph holds it as attributes. With `args` it is an ordinary function,
and the op one region of it (`placer.regions`).
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import OpError
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.types import TensorType

_OPERANDS = (
    Operand("inputs", "what the function takes, then parameters, state, and where a"
            " row stands", variadic=True),
)  # fmt: skip


def inputs(types: Types, attrs: Attrs) -> int:
    """How many operands are the function's own inputs."""
    return len(types) - len(attrs["params"]) - len(attrs["state"]) - 1


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    count = inputs(types, attrs)
    if count < 0:
        raise OpError(f"call needs {len(types) - count} operands, {len(types)} given")
    outs = tuple(TensorType.parse(text) for text in attrs["out"])
    state = types[len(types) - 1 - len(attrs["state"]) : -1]
    if attrs["batch"] == "rows":
        if state:
            raise OpError(
                "call with state needs batch: whole: a state is the whole batch's",
                attr="batch",
            )
        for out in outs:
            if not out.has_rows:
                raise OpError(
                    f"call with batch: rows needs results with rows, not {out}",
                    attr="batch",
                )
    return (*outs, *state)


def _batch(types: Types, attrs: Attrs) -> Rule:
    return "rows" if attrs["batch"] == "rows" else "whole"


def _cost(name: str, types: Types, attrs: Attrs) -> int:
    """A figure that was found for no row and for each."""
    fixed, each = attrs[name]
    return int(fixed + each * int(types[-1].shape[0]))


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    return _cost("grad_cost", types, attrs) if wrt else 0


CALL = Declaration(
    "call",
    "A JAX function of a Python module beside the spec, which is copied into the build:"
    " `fn(params, state, *inputs, rng, training)` gives its outputs and its new state."
    " `rng` is a JAX key for each row with `batch: rows`, else one key; it depends on"
    " the spec's seed, the op, the step and the row alone.",
    _OPERANDS,
    _infer,
    _batch,
    lambda types, attrs: _cost("cost", types, attrs),
    _grad_flops,
    attrs=(
        Attr("fn", str, "MODULE:FUNCTION", required=True),
        Attr("params", list[str], "names of the parameters", default=()),
        Attr("state", list[str], "names of the state", default=()),
        Attr("stream", int, "which random bits, below 2⁶³", default=0),
        Attr("training", bool, "what the function is told", default=False),
        Attr(
            "batch",
            str,
            "`rows` when row i of every output depends on row i of the inputs only",
            default="whole",
            choices=("rows", "whole"),
        ),
        Attr(
            "args",
            str,
            "of a traced function, how its inputs make its arguments",
            default="",
        ),
        Attr("region", int, "which region of a traced function this is", default=0),
        Attr("same", str, "what tells a region from another function's", default=""),
        Attr("saves", list[int], "operands that backward needs", default=()),
        Attr("out", list[str], "types of the results", default=(), known=True),
        Attr("keeps", list[str], "what backward needs beside", default=(), known=True),
        Attr(
            "cost", list[int], "FLOPs: of no row, of each", default=(0, 0), known=True
        ),
        Attr("grad_cost", list[int], "those of backward", default=(0, 0), known=True),
    ),
    variadic=True,
    saves=lambda types, attrs: tuple(attrs["saves"]),
    residuals=lambda types, attrs: tuple(
        TensorType.parse(text) for text in attrs["keeps"]
    ),
    inserted=True,
    formula="outputs, state = fn(params, state, *inputs, rng=rng, training=training)",
    cases=(
        Case(
            ("float32[batch, 8]", "float32[8, 8]", "uint32[batch, 2]"),
            {
                "fn": "blocks:ffn",
                "params": ("w",),
                "batch": "rows",
                "out": ("float32[batch, 8]",),
            },
        ),
    ),
    example="{name: y, op: call, fn: blocks:ffn, in: x, batch: rows,"
    ' params: {w: {shape: [8, 8], init: xavier_uniform}}, out: [y: "float32[batch, 8]"]}',
)

DECLARATIONS = (CALL,)
