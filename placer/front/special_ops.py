"""The kinds of a spec that no declaration describes: `parameter` and `call`."""

from __future__ import annotations

from collections.abc import Mapping as Entries
from collections.abc import Sequence
from typing import Any, Literal

from placer.front.program import current_program
from placer.front.variable import Variable
from placer.spec.op_kinds import CALL, PARAMETER


def parameter(
    shape: Sequence[int],
    init: str | Entries[str, Any],
    *,
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float32",
    name: str | None = None,
) -> Variable:
    """A parameter by itself, which no layer makes. It stands with its optimizer.

    shape: ints; [] for a scalar.
    init: how it begins, as `"xavier_uniform"` or `{"normal": 0.02}` (docs/spec.md).
    """
    entry: dict[str, Any] = {"shape": shape, "init": init}
    if dtype != "float32":
        entry["dtype"] = dtype
    (value,) = current_program().record(PARAMETER, entry, name).values
    return value


def call(
    fn: str,
    *inputs: Variable,
    out: str | Entries[str, str],
    params: Entries[str, Variable | Entries[str, Any]] | None = None,
    state: Entries[str, Entries[str, Any]] | None = None,
    batch: Literal["rows", "whole"] = "whole",
    name: str | None = None,
) -> Any:
    """A JAX function of one's own: `fn(params, state, *inputs, rng, training)` gives its
    outputs and its new state.

    fn: MODULE:FUNCTION, in a file beside the program's.
    out: the type of its result, as "float32[batch, 64]"; or of several, by name.
    params: `{"w": {"shape": [64, 64], "init": "zeros"}}`, or a parameter to share.
    state: what the function itself changes, in the same form.
    batch: rows when row i of every output depends on row i of the inputs only.

    Returns one Variable, or a tuple where `out` names results.
    """
    entry: dict[str, Any] = {"fn": fn}
    if inputs:
        entry["in"] = inputs if len(inputs) > 1 else inputs[0]
    if batch != "whole":
        entry["batch"] = batch
    entry |= {"params": params} if params else {}
    entry |= {"state": state} if state else {}
    if isinstance(out, str):
        (value,) = current_program().record(CALL, {**entry, "out": out}, name).values
        return value
    entry["out"] = [{key: kind} for key, kind in out.items()]
    return current_program().record(CALL, entry, name).values
