"""What JAX alone knows of the functions that a spec calls, found when it is compiled.

This is the one part of a compilation that imports JAX, and only for specs with `call`.
Each function is traced, never compiled: its result types are checked, and what its
backward keeps and what both cost are written into the graph. One that says `batch:
rows` is run on a few rows, together and apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np

from placer.build.modules import Modules, being_traced, modules_of
from placer.errors import PlacerError, SpecError, missing_package
from placer.graph.graph import Graph, Op
from placer.graph.kinds import declared_attrs
from placer.graph.model import Model
from placer.ops.attributes import complete, condense
from placer.ops.function import Function
from placer.ops.special.call import CALL
from placer.ops.special.call_jax import call
from placer.regions.batch_types import PROOF, SIZES, result_type
from placer.regions.function import Traced, likeness_of
from placer.regions.function import traced as traced_for
from placer.regions.row_proof import is_by_rows
from placer.types import BATCH, TensorType


def traced(model: Model) -> Model:
    """The model with every `call` filled in; SpecError at one that does not fit."""
    graph = model.graph
    with (
        jax.enable_x64(model.precision == "float64"),
        modules_of(model.folder, built=False) as found,
    ):
        known: dict[str, Any] = {}
        batches = _batches(model)
        ops = tuple(
            _filled(graph, op, found, known, batches) if op.kind == CALL.kind else op
            for op in graph.ops
        )
    return replace(model, graph=graph.with_ops(ops))


def _batches(model: Model) -> Sequence[int]:
    """The numbers of rows that functions of the model may run with: of the batches of
    training and of evaluation, whole and as nodes of each kind share them."""
    graph = model.graph
    wholes = [graph.batch // graph.microbatches, graph.batch]
    if model.eval is not None:
        wholes.append(model.eval.batch)
    counts = {1, *(kind.count for kind in graph.cluster.kinds)}
    return sorted(
        {
            rows // n + more
            for rows in wholes
            for n in counts
            for more in (0, rows % n > 0)
        }
    )


def _filled(
    graph: Graph,
    op: Op,
    modules: Modules,
    known: dict[str, Any],
    batches: Sequence[int],
) -> Op:
    given = declared_attrs(op.attrs)
    attrs = complete(CALL, given)
    types = [graph.tensor(name) for name in op.operands]
    try:
        fn = _function(attrs["fn"], modules, known)
        found = _found(fn, types, attrs)
        if attrs["batch"] == "rows" and not _is_proven(fn, attrs, batches):
            _check_rows(fn, types, attrs)
    except PlacerError as error:
        raise _at(op, error.message, error.hint) from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".strip()
        message = f"{attrs['fn']} raised {said}{_line(error, modules)}"
        raise _at(op, message, missing_package(error)) from error
    filled = condense(CALL, {**given, **found})
    return replace(op, attrs={**op.attrs, **filled})


def _at(op: Op, message: str, hint: str | None = None) -> SpecError:
    return SpecError(f"op '{op.name}' (call): {message}", span=op.source, hint=hint)


def _line(error: BaseException, modules: Modules) -> str:
    """The deepest line of the spec's modules that an error went through."""
    found, trace = "", error.__traceback__
    folder = str(modules.folder.absolute())
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(folder):
            found = f" ({file.removeprefix(folder).lstrip('/')}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found


def _function(text: str, modules: Modules, known: dict[str, Any]) -> Callable[..., Any]:
    module, _, name = text.partition(":")
    if module not in known:
        before = being_traced.set(module)
        try:
            known[module] = modules.load(module, module)
        finally:
            being_traced.reset(before)
    fn = getattr(known[module], name, None)
    if not callable(fn):
        raise PlacerError(f"{module}.py has no function '{name}'")
    return fn  # type: ignore[no-any-return]


def _keywords(fn: Callable[..., Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    passed = {a.name: attrs[a.name] for a in CALL.attrs if not a.known}
    return {**passed, "fn": fn}


def _structs(types: Sequence[TensorType], batch: int) -> list[Any]:
    struct: Any = jax.ShapeDtypeStruct  # which has no types
    return [struct(t.sizes(batch), t.dtype) for t in types]


def _found(
    fn: Callable[..., Any], types: Sequence[TensorType], attrs: Mapping[str, Any]
) -> dict[str, Any]:
    """The attributes that a trace tells."""
    function = Function(CALL.kind, call)
    everything = tuple(range(len(types)))
    keywords = {**_keywords(fn, attrs), "saves": everything}

    def forward(*xs: jax.Array) -> Any:
        return function.forward(*xs, **keywords)

    args = attrs["args"]
    traces = [jax.eval_shape(forward, *_structs(types, size)) for size in SIZES]
    outs = [jax.tree.leaves(out) for out, _ in traces]
    pairs = enumerate(zip(*outs, strict=True))
    results = [
        result_type(f"result {index} of {attrs['fn']}", *pair) for index, pair in pairs
    ]
    wanted = list(CALL.infer(types, attrs))
    if results != wanted:
        shown = ", ".join(map(str, results))
        meant = ", ".join(map(str, wanted))
        hint = "say the types that the function gives under 'out', the state's apart"
        if args:
            hint = "its file, imported with 64-bit types or without, makes other arrays"
        raise PlacerError(
            f"{attrs['fn']} gives {shown}, and the spec says {meant}", hint=hint
        )
    # An evaluation runs it too, and must not meet its first trace there.
    predict = partial(function, **{**keywords, "training": False})
    jax.eval_shape(predict, *_structs(types, SIZES[0]))
    kept = [residuals for _, residuals in traces]
    if len(kept[0].extra) != len(kept[1].extra):
        raise PlacerError(
            f"{attrs['fn']} is another function for {SIZES[0]} rows than for {SIZES[1]}",
            hint="what a function does may not depend on how many rows there are",
        )
    extra = zip(kept[0].extra, kept[1].extra, strict=True)
    saves = sorted({leaf.index for leaf in kept[0].leaves if leaf.operand})
    return {
        "saves": tuple(saves),
        "keeps": tuple(str(_kept_type(*pair)) for pair in extra),
        **_costs(function, types, keywords),
        **({"same": likeness_of(fn, args, attrs["region"])} if args else {}),
    }


def _kept_type(small: Any, large: Any) -> TensorType:
    """The type of what backward keeps: only its memory is counted by it, so what
    changes with the batch may pass for the batch."""
    shape = tuple(
        a if a == b else BATCH for a, b in zip(small.shape, large.shape, strict=True)
    )
    return TensorType(str(small.dtype), shape)


def _costs(
    function: Function, types: Sequence[TensorType], keywords: Mapping[str, Any]
) -> dict[str, tuple[int, int]]:
    """FLOPs as XLA counts them before it optimizes: of no row, and of each."""

    def forward(*xs: jax.Array) -> Any:
        return function(*xs, **keywords)

    def both(*xs: jax.Array) -> Any:
        out, residuals = function.forward(*xs, **keywords)
        ones = jax.tree.map(
            lambda y: None if y.dtype.kind in "iub" else jax.numpy.ones_like(y),
            out if isinstance(out, tuple) else (out,),
        )
        return out, function.backward(residuals, *xs, *ones)

    counted = {}
    for name, fn in (("cost", forward), ("both", both)):
        small, large = (_flops(fn, _structs(types, size)) for size in SIZES)
        each = (large - small) // (SIZES[1] - SIZES[0])
        counted[name] = (max(0, small - each * SIZES[0]), each)
    cost, whole = counted["cost"], counted["both"]
    beside = max(0, whole[0] - cost[0]), max(0, whole[1] - cost[1])
    return {"cost": cost, "grad_cost": beside}


def _flops(fn: Callable[..., Any], structs: Sequence[Any]) -> int:
    analysis = jax.jit(fn).lower(*structs).cost_analysis()
    return int((analysis or {}).get("flops", 0))


def _is_proven(
    fn: Callable[..., Any], attrs: Mapping[str, Any], batches: Sequence[int]
) -> bool:
    """Whether the equations of a traced function prove that it works row by row.
    PlacerError where they do, and are others for one of the model's own batches."""
    args = attrs["args"]

    def trace(rows: int) -> Traced:
        return traced_for(fn, args, rows)

    if not args or not is_by_rows(trace):
        return False
    for rows in batches:
        # Of a single row, JAX itself leaves some equations out.
        if rows not in (0, 1, *PROOF) and not is_by_rows(trace, rows):
            raise PlacerError(
                f"{attrs['fn']} works row by row for {PROOF[0]} and {PROOF[1]} rows, and"
                f" is another function for {rows}",
                hint='give placer.trace batch="whole", or let it do the same for any'
                " number of rows",
            )
    return True


def _check_rows(
    fn: Callable[..., Any], types: Sequence[TensorType], attrs: Mapping[str, Any]
) -> None:
    """Run a few rows together, and in two halves: the same must come out."""
    rng = np.random.default_rng(0)
    rows = 4
    wide = jax.dtypes.canonicalize_dtype("float64") == np.float64
    close = {"rtol": 1e-6, "atol": 1e-7} if wide else {"rtol": 1e-4, "atol": 1e-5}
    arrays = [_array(rng, t, t.sizes(rows)) for t in types]
    arrays[-1] = np.stack([np.full(rows, 1), np.arange(rows)], -1).astype(np.uint32)
    for training in (True, False):
        keywords = {**_keywords(fn, attrs), "training": training}
        run = jax.jit(partial(call, **keywords))
        whole = jax.tree.leaves(run(*arrays))
        halves = [
            jax.tree.leaves(
                run(
                    *(
                        x[part] if t.has_rows else x
                        for x, t in zip(arrays, types, strict=True)
                    )
                )
            )
            for part in (slice(0, rows // 2), slice(rows // 2, rows))
        ]
        for one, first, second in zip(whole, *halves, strict=True):
            apart = np.concatenate([first, second])
            if not np.allclose(one, apart, equal_nan=True, **close):
                raise PlacerError(
                    f"{attrs['fn']} says batch: rows, and gives other rows when it has"
                    " half of them",
                    hint="write batch: whole, or let no row depend on another",
                )


def _array(rng: np.random.Generator, kind: TensorType, sizes: tuple[int, ...]) -> Any:
    if kind.is_float:
        return rng.normal(size=sizes).astype(kind.dtype)
    high = 2 if kind.dtype == "bool" else 3
    return (
        rng.integers(0, high, sizes).astype(kind.dtype)
        if prod(sizes)
        else np.zeros(sizes, kind.dtype)
    )
