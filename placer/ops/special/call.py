"""call: a JAX function of a Python module next to the spec.

`placer.compiler.tracing.calls` runs JAX on the function to derive result types, residuals
and cost, and the graph stores them as attributes. With `args`, the op is one region of a
traced function (`placer.ops.functions`).
"""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.declaration import Attr, Attrs, Declaration, case, flag, required
from placer.ops.operand import Operand, Types
from placer.place.types import TensorType

_OPERANDS = (
    Operand("inputs", "the function's inputs, then its parameters, its state, and uint32[batch, 2]:"
        " the step and the row's index in the global batch",
            variadic=True),
)  # fmt: skip


def count_inputs(types: Types, attrs: Attrs) -> int:
    """Return the number of operands that are inputs of the function."""
    return len(types) - len(attrs["params"]) - len(attrs["state"]) - 1


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    count = count_inputs(types, attrs)
    if count < 0:
        raise OpError(f"needs {len(types) - count} operands, {len(types)} given")
    outs = tuple(TensorType.parse(text) for text in attrs["out"])
    state = types[len(types) - 1 - len(attrs["state"]) : -1]
    if attrs["batch"] == "rows":
        if state:
            raise OpError(
                "has state, so it needs batch: whole; a state belongs to the"
                " whole batch",
                attr="batch",
            )
        for out in outs:
            if not out.has_rows:
                raise OpError(
                    f"has batch: rows, but its result {out} has no rows", attr="batch"
                )
    return (*outs, *state)


def _cost(name: str, types: Types, attrs: Attrs) -> int:
    """Return a cost for the local rows: a constant part, and a part for each row."""
    fixed, per_row = attrs[name]
    return int(fixed + per_row * int(types[-1].shape[0]))


CALL = Declaration(
    "call",
    "Calls a JAX function of a Python module next to the spec. The build contains"
    " a copy of the module. `fn(params, state, *inputs, rng, training)` returns"
    " its outputs and its new state. With `batch: rows`, `rng` has one JAX key"
    " for each row, otherwise it is a single key. A key depends only on the"
    " spec's seed, the op, the step and the row.",
    _OPERANDS,
    _infer,
    lambda types, attrs: "whole" if attrs["batch"] == "whole" else "rows",
    lambda types, attrs: _cost("cost", types, attrs),
    lambda types, attrs, wrt: _cost("grad_cost", types, attrs) if wrt else 0,
    attrs=(
        required("fn", str, "the function, as MODULE:FUNCTION", is_function=True),
        Attr("params", list[str], "names of the parameters", default=()),
        Attr("state", list[str], "names of the state", default=()),
        Attr("stream", int, "the number of the random stream, below 2⁶³", default=0),
        flag("training", "the function's argument `training`"),
        Attr(
            "batch",
            str,
            "`rows` if row i of each output depends only on row i of the inputs;"
            " `replica` if a traced function computes each part of the batch",
            default="whole",
            choices=("rows", "whole", "replica"),
        ),
        Attr(
            "parts",
            int,
            "for a traced function: the number of parts of the batch; 0 without parts",
            default=0,
        ),
        Attr("axis", str, "the name of the axis over the parts", default=""),
        Attr(
            "args",
            str,
            "for a traced function: how its arguments are built from its inputs",
            default="",
        ),
        Attr("region", int, "the index of the region of a traced function", default=0),
        Attr("same", str, "a digest that identifies the traced function", default=""),
        Attr("saves", list[int], "operands that the backward needs", default=()),
        Attr("out", list[str], "types of the results", default=(), compiler_only=True),
        Attr(
            "keeps",
            list[str],
            "types of the residuals besides operands",
            default=(),
            compiler_only=True,
        ),
        Attr(
            "cost",
            list[int],
            "FLOPs of the forward: for no rows, and for each row",
            default=(0, 0),
            compiler_only=True,
        ),
        Attr(
            "grad_cost",
            list[int],
            "FLOPs of the backward: for no rows, and for each row",
            default=(0, 0),
            compiler_only=True,
        ),
    ),
    variadic=True,
    saves=lambda types, attrs: tuple(attrs["saves"]),
    residuals=lambda types, attrs: tuple(
        TensorType.parse(text) for text in attrs["keeps"]
    ),
    takes_count=lambda types, attrs: attrs["parts"] > 0,
    inserted=True,
    formula="outputs, state = fn(params, state, *inputs, rng=rng, training=training)",
    cases=(
        case(
            "float32[batch, 8], float32[8, 8], uint32[batch, 2]",
            fn="blocks:ffn",
            params=("w",),
            batch="rows",
            out=("float32[batch, 8]",),
        ),
    ),
)
