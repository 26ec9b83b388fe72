"""Traces the functions of a spec: the ops `call`, `trace` and `metric`.

Functions are traced, not compiled. Tracing checks the result types, and records the
residuals of the backward pass and the FLOPs of both passes in the graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax

from placer import ops
from placer.compiler.graph.declared import calls_user_code, declared_attrs
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.tracing.flops import costs, flops_of
from placer.compiler.tracing.row_check import check_rows, is_proven
from placer.compiler.tracing.user_functions import (
    deepest_line,
    describe_raised,
    load_function,
)
from placer.errors import PlacerError, SpecError, missing_package_hint
from placer.ops.attributes import complete, condense
from placer.ops.function import Function
from placer.ops.functions.batch_types import (
    TRACE_BATCHES,
    abstract_values,
    result_type,
    trace_batches,
)
from placer.ops.functions.function import trace_function
from placer.ops.functions.mode import Mode
from placer.ops.functions.replica_axis import OUTSIDE
from placer.ops.functions.run_region import fingerprint_of
from placer.ops.functions.untrained import untrained_arrays
from placer.ops.special.call import CALL
from placer.ops.special.call_jax import call
from placer.ops.special.user_metric import METRIC
from placer.ops.special.user_metric_jax import metric, row_numbers
from placer.place.types import BATCH, ITEM_BYTES, TensorType
from placer.plan.modules import Modules, modules_in


def complete_calls(model: Model) -> Model:
    """Return the model with the traced attributes of every `call` and `metric`.

    Raises SpecError at an op whose function contradicts the spec.
    """
    graph = model.graph
    with (
        jax.enable_x64(model.settings.precision == "float64"),
        modules_in(model.folder, built=False) as modules,
    ):
        loaded: dict[str, Any] = {}
        batches = _batch_sizes(model)
        completed = tuple(
            _complete(graph, op, modules, loaded, batches)
            if calls_user_code(op)
            else op
            for op in graph.ops
        )
        untrained = {
            op.name.partition(".")[0]: found
            for op in completed
            if (found := _untrained_arrays(op, modules, loaded))
        }
    return replace(model, graph=graph.with_ops(completed), untrained=untrained)


def _untrained_arrays(
    op: Op, modules: Modules, loaded: dict[str, Any]
) -> tuple[str, ...]:
    """Return the arrays of a traced function that are not trained, at its first region."""
    if op.kind != CALL.kind or not op.attrs.get("args") or op.attrs.get("region"):
        return ()
    fn = load_function(op.attrs["fn"], modules, loaded)
    return tuple(untrained_arrays(fn, op.attrs["args"]))


def _batch_sizes(model: Model) -> Sequence[int]:
    """Return the numbers of rows for which user functions may run."""
    # Functions run for training and evaluation batches, and for local rows of each node
    # kind.
    graph = model.graph
    wholes = [graph.batch // graph.microbatches, graph.batch]
    if model.eval is not None:
        wholes.append(model.eval.batch)
    counts = {1, *(kind.size for kind in graph.cluster.kinds)}
    pairs = product(wholes, counts)
    return sorted({size for w, n in pairs for size in (w // n, -(-w // n))})


def _complete(
    graph: Graph,
    op: Op,
    modules: Modules,
    loaded: dict[str, Any],
    batches: Sequence[int],
) -> Op:
    written = declared_attrs(op)
    declaration = ops.find(op.kind)
    attrs = complete(declaration, written)
    types = [graph.tensor_type(name) for name in op.operands]
    try:
        fn = load_function(attrs["fn"], modules, loaded)
        trace = _trace_metric if declaration is METRIC else _trace_call
        traced = trace(fn, types, attrs, batches)
    except PlacerError as error:
        raise _error_at(op, error.message, error.hint) from error
    except (Exception, SystemExit) as error:
        axis = attrs.get("axis")
        unbound = f"unbound axis name: {axis}"
        if axis and isinstance(error, NameError) and unbound in str(error):
            # The function was traced with the axis before; only its derivative was not.
            message = (
                f"{attrs['fn']} reduces over the axis '{axis}' in the derivative of a"
                f" custom_vjp or custom_jvp{deepest_line(error, modules)}"
            )
            raise _error_at(op, message, OUTSIDE) from error
        message = describe_raised(attrs["fn"], error, modules)
        raise _error_at(op, message, missing_package_hint(error)) from error
    completed = condense(declaration, {**written, **traced})
    return op.with_attrs(**completed)


def _error_at(op: Op, message: str, hint: str | None = None) -> SpecError:
    return SpecError(
        f"op '{op.name}' ({op.kind}): {message}", span=op.source, hint=hint
    )


def _trace_call(
    fn: Callable[..., Any],
    types: Sequence[TensorType],
    attrs: Mapping[str, Any],
    batches: Sequence[int],
) -> dict[str, Any]:
    """Return the traced attributes of a `call`; check `batch`."""
    if attrs["parts"]:
        _check_parts(fn, attrs)
    traced = _traced_attributes(fn, types, attrs)
    mode = Mode(training=attrs["training"])
    if attrs["batch"] == "rows" and not is_proven(
        fn,
        attrs["fn"],
        attrs["args"],
        batches,
        'pass batch="whole" to placer.trace',
        mode,
    ):
        # A traced function has an op for each mode.
        modes = (attrs["training"],) if attrs["args"] else (True, False)
        for training in modes:
            keywords = {**_keywords(fn, attrs), "training": training}
            check_rows(
                partial(call, **keywords),
                types,
                f"{attrs['fn']} has batch: rows, but",
                "write batch: whole",
            )
    return traced


def _check_parts(fn: Callable[..., Any], attrs: Mapping[str, Any]) -> None:
    """Check that a region has `batch: replica` if its results differ between parts."""
    number = attrs["region"]
    regions = trace_function(
        fn, attrs["args"], TRACE_BATCHES[0], _mode_of(attrs)
    ).cut.regions
    if number >= len(regions):
        return  # `run_region` reports it
    needed = "whole" if regions[number].split is None else "replica"
    if attrs["batch"] != needed:
        raise PlacerError(
            f"region {number} of {attrs['fn']} has batch: {attrs['batch']}, but needs"
            f" batch: {needed}",
            hint="let `placer to-yaml` write the regions of the function again",
        )


def _trace_metric(
    fn: Callable[..., Any],
    types: Sequence[TensorType],
    attrs: Mapping[str, Any],
    batches: Sequence[int],
) -> dict[str, Any]:
    """Return the cost of a `metric`; check that it returns one number per row."""
    numbers = partial(row_numbers, fn)
    for size in TRACE_BATCHES:
        jax.eval_shape(numbers, *abstract_values(types, size))
    args = json.dumps([{"in": str(kind)} for kind in types])
    instead = "use the op call with batch: whole for values of the whole batch"
    if not is_proven(fn, attrs["fn"], args, batches, instead):
        # The position of each row comes last, as for a call.
        position = TensorType("uint32", (BATCH, 2))
        check_rows(
            lambda *xs: numbers(*xs[:-1]),
            [*types, position],
            f"{attrs['fn']} must work row by row, but",
            instead,
        )
    return {"cost": flops_of(partial(metric, fn=fn), types)}


def _keywords(fn: Callable[..., Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    passed = {a.name: attrs[a.name] for a in CALL.attrs if not a.compiler_only}
    return {**passed, "fn": fn}


def _traced_attributes(
    fn: Callable[..., Any], types: Sequence[TensorType], attrs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the attributes of a `call` that tracing determines."""
    function = Function(CALL.kind, call)
    everything = tuple(range(len(types)))
    keywords = {**_keywords(fn, attrs), "saves": everything}
    forward = partial(function.forward, **keywords)
    args = attrs["args"]
    sizes = trace_batches(attrs["parts"])
    traces = [jax.eval_shape(forward, *abstract_values(types, size)) for size in sizes]
    outs = [jax.tree.leaves(out) for out, _ in traces]
    pairs = enumerate(zip(*outs, strict=True))
    results = [
        result_type(f"result {index} of {attrs['fn']}", small, large, sizes)
        for index, (small, large) in pairs
    ]
    declared = list(CALL.infer(types, attrs))
    if results != declared:
        shown = ", ".join(map(str, results))
        expected = ", ".join(map(str, declared))
        hint = (
            "write the actual types under 'out', and those of the state under 'state'"
        )
        if args:
            hint = "give arrays in its file a dtype: defaults change with 64-bit types"
        raise PlacerError(
            f"{attrs['fn']} returns {shown}, but the spec has {expected}", hint=hint
        )
    if not args:
        # Evaluation calls the function with training=False: report errors of it now.
        predict = partial(function, **{**keywords, "training": False})
        jax.eval_shape(predict, *abstract_values(types, TRACE_BATCHES[0]))
    residuals = [each for _, each in traces]
    if len(residuals[0].extra) != len(residuals[1].extra):
        raise PlacerError(
            f"{attrs['fn']} behaves differently for {sizes[0]} rows and for"
            f" {sizes[1]} rows",
            hint="make the function do the same for any number of rows",
        )
    extra = zip(residuals[0].extra, residuals[1].extra, strict=True)
    saves = sorted({i for i in residuals[0].leaves if i is not None})
    return {
        "saves": tuple(saves),
        "keeps": tuple(str(_residual_type(*pair)) for pair in extra),
        **costs(function, types, keywords, sizes),
        **({"same": _fingerprint(fn, attrs)} if args else {}),
    }


def _fingerprint(fn: Callable[..., Any], attrs: Mapping[str, Any]) -> str:
    return fingerprint_of(fn, attrs["args"], attrs["region"], _mode_of(attrs))


def _mode_of(attrs: Mapping[str, Any]) -> Mode:
    by_rows = attrs["batch"] == "rows"
    return Mode(attrs["training"], by_rows, attrs["parts"], attrs["axis"])


def _residual_type(small: Any, large: Any) -> TensorType:
    """Return the type of a residual."""
    # The type serves only to count memory, so each dimension that varies with the batch
    # becomes the batch dimension.
    shape = tuple(
        a if a == b else BATCH for a, b in zip(small.shape, large.shape, strict=True)
    )
    if str(small.dtype) in ITEM_BYTES:
        return TensorType(str(small.dtype), shape)
    # Types of a graph have no complex numbers and no random keys.
    return TensorType("uint8", (*shape, small.dtype.itemsize))
