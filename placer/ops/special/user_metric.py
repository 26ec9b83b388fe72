"""metric: a user-defined metric, a JAX function of a Python module next to the spec.

As for `call`, `placer.compiler.tracing.calls` runs JAX on the function: it checks the
results, and derives the cost, which the graph stores.
"""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.declaration import Attr, Attrs, Declaration, case, required
from placer.ops.operand import Operand, Types
from placer.place.types import TensorType


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the type of two sums: float64 if an operand is float64, else float32."""
    if not types[0].has_rows:
        raise OpError(f"needs rows, but 'inputs' begin with {types[0]}", operand=0)
    wide = any(each.dtype == "float64" for each in types)
    return (TensorType("float64" if wide else "float32", (2,)),)


def _flops(types: Types, attrs: Attrs) -> int:
    fixed, per_row = attrs["cost"]
    return int(fixed + per_row * int(types[0].shape[0]))


METRIC = Declaration(
    "metric",
    "A user-defined metric: a JAX function of a Python module next to the spec."
    " The build contains a copy of the module. `fn(*inputs)` returns an array of"
    " shape [batch], and the metric is its mean over all rows. It may instead"
    " return two such arrays, numerators and denominators; the metric is the sum"
    " of the numerators divided by the sum of the denominators. Row i of the"
    " results must depend only on row i of the inputs. The compiler checks this.",
    (
        Operand(
            "inputs",
            "the function's arguments, such as outputs and labels; the first has rows",
            variadic=True,
        ),
    ),
    _infer,
    batch_rule=lambda types, attrs: "reduce",
    flops=_flops,
    attrs=(
        required("fn", str, "the function, as MODULE:FUNCTION", is_function=True),
        Attr(
            "cost",
            list[int],
            "FLOPs for no rows, and for each row; written by the compiler",
            default=(0, 0),
            compiler_only=True,
        ),
    ),
    differentiable=False,
    finalizer="ratio",
    formula="Σ numerator / Σ denominator",
    cases=(case("float32[batch, 10], int32[batch]", fn="metrics:margin"),),
)
