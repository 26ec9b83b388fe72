"""The ops with hand-written functions: `parameter`, `call` and `metric`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from placer.compiler.frontend.entries.op_kinds import CALL, PARAMETER
from placer.compiler.frontend.python.program import current_program
from placer.compiler.frontend.python.results import one_or_list
from placer.compiler.frontend.python.trace import function_path
from placer.compiler.frontend.python.variable import Variable
from placer.errors import SpecError
from placer.ops.special.user_metric import METRIC
from placer.plan.settings.checks import describe_value
from placer.system.callsite import call_error


def parameter(
    shape: Sequence[int],
    init: str | Mapping[str, Any],
    *,
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = "float32",
    name: str | None = None,
) -> Variable:
    """A parameter that belongs to no layer. It is stored at the place of its optimizer.

    Args:
        shape: ints; [] for a scalar.
        init: the initializer, such as `"xavier_uniform"` or `{"normal": 0.02}`
            (docs/reference/spec.md).
    """
    entry: dict[str, Any] = {"shape": shape, "init": init}
    if dtype != "float32":
        entry["dtype"] = dtype
    (value,) = current_program().record(PARAMETER, entry, name).values
    return value


def call(
    fn: str,
    *inputs: Variable,
    out: str | Mapping[str, str],
    params: Mapping[str, Variable | Mapping[str, Any]] | None = None,
    state: Mapping[str, Mapping[str, Any]] | None = None,
    batch: Literal["rows", "whole"] = "whole",
    name: str | None = None,
) -> Any:
    """A JAX function of the user.

    `fn(params, state, *inputs, rng, training)` returns its outputs and its new state.

    Args:
        fn: MODULE:FUNCTION, in a file next to the program's file.
        out: the type of its result, such as "float32[batch, 64]"; for several results, a
            mapping from names to types.
        params: `{"w": {"shape": [64, 64], "init": "zeros"}}`, or a parameter to share.
        state: values that the function updates, in the same form.
        batch: "rows" if row i of every output depends only on row i of the inputs.

    Returns:
        one Variable, or a tuple if `out` is a mapping.
    """
    entry: dict[str, Any] = {"fn": fn}
    if inputs:
        entry["in"] = one_or_list(inputs)
    if batch != "whole":
        entry["batch"] = batch
    entry |= {"params": params} if params else {}
    entry |= {"state": state} if state else {}
    entry["out"] = out
    if not isinstance(out, str):
        entry["out"] = [{key: kind} for key, kind in out.items()]
    values = current_program().record(CALL, entry, name).values
    return values[0] if isinstance(out, str) else values


def metric(
    fn: str | Callable[..., Any], *inputs: Variable, name: str | None = None
) -> Variable:
    """A metric that a JAX function of the user computes.

    `fn(*inputs)` returns a number for each row; the metric is its mean over all rows.
    Or it returns a numerator and a denominator for each row.

    Args:
        fn: a JAX function, or MODULE:FUNCTION, in a file next to the program's file.
        inputs: such as outputs and labels; the first one has rows.
    """
    program = current_program()
    if not isinstance(fn, str):
        try:
            fn = function_path(fn, program, "layers.metric")
        except SpecError as error:
            raise call_error(error.message, error.hint) from None
    for value in inputs:
        if not isinstance(value, Variable):
            raise call_error(
                "the inputs of a metric must be values of the program, not"
                f" {describe_value(value)}"
            )
    if not inputs:
        raise call_error("a metric needs the values to pass to its function")
    entry = {"fn": fn, "in": one_or_list(inputs)}
    (value,) = program.record(METRIC.kind, entry, name).values
    return value
