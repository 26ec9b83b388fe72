"""differentiate: reverse-mode differentiation of the loss, and the parameter updates.

Needs the graph of a front end. Afterwards each op between a trainable parameter and the
loss has a residual as its last result, `%h1.res`, and a gradient op, such as `fc.grad`. The
operands of the gradient op are the residual, the saved forward operands, and the cotangents
of the results that lead to the loss. If a value has several uses, `accumulate` sums its
gradients in program order. If a forward op has no place, its gradient op runs where
`minimize` is placed. The ops of `placer.compiler.passes.gradients.updates` replace
`minimize`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from placer import ops
from placer.compiler.graph.declared import declared, declared_attrs, works_by_rows
from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.passes.gradients.updates import update_ops
from placer.errors import GraphError
from placer.place.types import ResidualType, TensorType


def differentiate(graph: Graph) -> Graph:
    """Run the pass.

    Raises GraphError if the loss depends on no trainable parameter, if an optimizer has
    nothing to update, or if a scope with `remat` has nothing to recompute.
    """
    minimize_ops = graph.of_kind("minimize")
    if not minimize_ops:
        return graph
    minimize = minimize_ops[0]
    loss = minimize.operands[0]
    if graph.producers[loss] in graph.weights:
        raise GraphError(
            f"'{loss}' is a parameter, but only the result of an op can be minimized",
            span=minimize.source,
        )
    _check_remat(graph, loss)
    trainable = {op.name for op in graph.weights if "group" in op.attrs}
    active = _active_operands(graph, loss, trainable)
    uses = _uses(graph, active)
    backward = tuple(_backward(graph, minimize, active, uses))
    trained = [op for op in graph.weights if op.name in uses]
    _check_groups(graph, loss, trained)
    forward = []
    for op in graph.ops:
        if op in active:
            forward.append(_with_residual(graph, op))
        elif op.kind == "record" and op.operands == minimize.operands:
            forward.append(op.with_attrs(minimized=True))
        elif op is not minimize:
            forward.append(op)
    return graph.with_ops([*forward, *backward, *update_ops(graph, minimize, trained)])


def trained_parameters(graph: Graph) -> list[Op]:
    """Return the parameters that the optimizers of a written graph update.

    Raises GraphError if an optimizer has nothing to update.
    """
    ((loss,),) = (op.operands for op in graph.of_kind("minimize"))
    trainable = {op.name for op in graph.weights if "group" in op.attrs}
    uses = _uses(graph, _active_operands(graph, loss, trainable))
    trained = [op for op in graph.weights if op.name in uses]
    _check_groups(graph, loss, trained)
    return trained


def _check_groups(graph: Graph, loss: str, trained: Sequence[Op]) -> None:
    """Raise GraphError if an optimizer has nothing to update."""
    used_groups = {op.attrs["group"] for op in trained}
    for group, optimizer in graph.optimizers.items():
        if group in used_groups:
            continue
        parameters = graph.weights
        first, *rest = [p.name for p in parameters if p.attrs.get("group") == group]
        more = f" and {len(rest)} more" if rest else ""
        raise GraphError(
            f"this optimizer trains nothing: '{loss}' does not depend on "
            f"'{first}'{more}",
            span=optimizer.source,
            hint="minimize a loss that depends on them, or set trainable: false",
        )


def _check_remat(graph: Graph, loss: str) -> None:
    """Raise GraphError if `remat` has no effect on a scope, for any trained parameters and
    any places."""
    scopes: dict[int, list[Op]] = {}
    for op in graph.ops:
        if "remat" in op.attrs:
            scopes.setdefault(op.attrs["remat"], []).append(op)
    if not scopes:
        return
    active = _active_operands(graph, loss, {op.name for op in graph.weights})
    for scope in scopes.values():
        why = ""
        if active.keys().isdisjoint(scope):
            why = f"is between a parameter and '{loss}', so none has a gradient"
        elif not any(works_by_rows(graph, op) for op in scope):
            why = "works row by row, so all results are saved"
        if why:
            raise GraphError(
                f"'remat' of the scope with '{scope[0].name}' has no effect: none of its"
                f" ops {why}",
                span=scope[0].source,
                hint="leave remat out: it has nothing to recompute",
            )


def _active_operands(
    graph: Graph, loss: str, parameters: AbstractSet[str]
) -> dict[Op, tuple[int, ...]]:
    """Return the ops on a path from a parameter to the loss, with the indices of the
    operands on such a path."""
    dependent = {*parameters}
    candidates: dict[Op, tuple[int, ...]] = {}  # ops that depend on a parameter
    for op in graph.ops:
        if not op.is_computed or not ops.find(op.kind).differentiable:
            continue
        if dependent.isdisjoint(op.operands):
            continue
        declaration, types, attrs = declared(graph, op)
        constant = declaration.constant_operands(types, attrs)
        wrt = tuple(
            i
            for i, name in enumerate(op.operands)
            if name in dependent and i not in constant
        )
        if wrt:
            candidates[op] = wrt
            dependent.update(
                v.name
                for v in op.results
                if isinstance(v.type, TensorType) and v.type.is_float
            )
    if loss not in dependent:
        raise GraphError(
            f"'{loss}' depends on no trainable parameter, so minimizing it has no effect",
            span=graph.producers[loss].source,
        )
    active = needed_ops(
        list(candidates),
        lambda op: op is graph.producers[loss],
        lambda op: [op.operands[i] for i in candidates[op]],
    )
    return {op: candidates[op] for op in active}


_Use = tuple[Op, int]
"""A use of a value: the op, and the index of the operand."""


def _uses(graph: Graph, active: Mapping[Op, Sequence[int]]) -> dict[str, list[_Use]]:
    """Return the uses of each value with a gradient, in program order."""
    uses: dict[str, list[_Use]] = {}
    for op in graph.ops:
        for index in active.get(op, ()):
            uses.setdefault(op.operands[index], []).append((op, index))
    return uses


def _with_residual(graph: Graph, op: Op) -> Op:
    declaration, types, attrs = declared(graph, op)
    parts = declaration.residuals(types, attrs)
    residual = Value(f"{op.name}.res", _residual_type(tuple(parts)))
    return op.with_values(op.operands, (*op.results, residual))


@lru_cache
def _residual_type(parts: tuple[TensorType, ...]) -> ResidualType:
    """Share one object between equal types, which the verifier compares by identity first."""
    return ResidualType(parts)


def _backward(
    graph: Graph,
    minimize: Op,
    active: Mapping[Op, Sequence[int]],
    uses: Mapping[str, Sequence[_Use]],
) -> Iterator[Op]:
    """Yield gradient ops and sums of gradients, from the loss backwards."""
    (loss,) = minimize.operands
    loss_type = graph.tensor_type(loss)
    seed = {"value": 1.0, "dtype": loss_type.dtype, "shape": ()}
    yield Op("constant", (), (Value(f"{loss}.grad", loss_type),), seed)
    gradients = {
        use: f"{name}.grad.{i}" if len(of_value) > 1 else f"{name}.grad"
        for name, of_value in uses.items()
        for i, use in enumerate(of_value)
    }
    for op in reversed(graph.ops):
        for value in op.results:
            of_value = uses.get(value.name, ())
            if len(of_value) > 1:
                terms = tuple(gradients[use] for use in of_value)
                total = Value(f"{value.name}.grad", value.type)
                attrs = {"of": value.name}
                yield Op("accumulate", terms, (total,), attrs, source=op.source)
        wrt = active.get(op)
        if wrt:
            cotangents = [
                i
                for i, value in enumerate(op.results)
                if value.name == loss or value.name in uses
            ]
            gradient = _gradient_op(graph, op, wrt, cotangents, gradients)
            yield gradient if op.place else gradient.with_place(minimize.place)


def _gradient_op(
    graph: Graph,
    op: Op,
    wrt: Sequence[int],
    cotangents: Sequence[int],
    gradients: Mapping[_Use, str],
) -> Op:
    """Return the gradient op of a forward op."""
    # `wrt`: operands to differentiate with respect to. `cotangents`: results that lead to
    # the loss. `gradients`: the name of each gradient, by op and operand index.
    declaration, types, complete_attrs = declared(graph, op)
    saved = declaration.saves(types, complete_attrs)
    attrs = {**declared_attrs(op), "wrt": tuple(wrt)}
    if len(cotangents) < len(op.results):
        attrs["cotangents"] = tuple(cotangents)
    saved_names = (op.operands[i] for i in saved)
    cotangent_names = (f"{op.results[i].name}.grad" for i in cotangents)
    operands = (f"{op.name}.res", *saved_names, *cotangent_names)
    results = tuple(Value(gradients[op, i], types[i]) for i in wrt)
    return Op(f"{op.kind}.grad", operands, results, attrs, source=op.source)
