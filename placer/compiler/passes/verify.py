"""The verifier: checks a graph before and after each pass.

The checks depend on the form of the graph: see `GraphForm`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.layout_rules import (
    Layouts,
    LayoutSignature,
    forward_signature,
)
from placer.compiler.graph.signatures import signature
from placer.compiler.graph.structural_ops import conversion_kind, is_conversion
from placer.compiler.passes.verify_types import (
    VerifierCache,
    check_names,
    check_types,
    verification_error,
)
from placer.errors import PlacerError
from placer.place.layouts import Layout
from placer.place.types import ResidualType
from placer.plan.settings.training.optimizers import OPTAX


class GraphForm(IntEnum):
    """A stage of lowering. Each form also has all properties of the earlier forms."""

    WRITTEN = 0
    """Each name is defined once, before its use, and types match the declarations."""
    DIFFERENTIATED = 1
    """The graph has no `minimize`, and every `optimizer` updates a parameter."""
    PLACED = 2
    """Every op has a place that exists in the cluster."""
    LAID_OUT = 3
    """Every value has a layout. Every op has its operands on its own nodes, in the layouts
    that it needs."""
    TRANSFERRED = 4
    """Values cross nodes only as messages, from `send` to `listen_and_serv`."""
    COPIED = 5
    """Every op has its operands on its own devices."""


def verify(graph: Graph, form: GraphForm, cache: VerifierCache | None = None) -> None:
    """Check that a graph has all properties of a form.

    If a pass derived the graph from the last verified graph, only changed ops and their
    users are checked. `PLACER_VERIFY=all` in the environment checks all ops.

    Args:
        graph: the graph.
        form: the expected form.
        cache: results of earlier calls.

    Raises:
        GraphError: at the first violation, with the text of the op.
    """
    cache = VerifierCache() if cache is None else cache
    if graph is cache.graph and form <= cache.form:
        return
    old = None if os.environ.get("PLACER_VERIFY") == "all" else cache.graph
    old_form = -1 if old is None else cache.form
    check_names(graph)
    moved, retyped = _changed_ops(graph, old, old_form >= GraphForm.LAID_OUT)
    check_types(graph, retyped, cache)
    if form >= GraphForm.PLACED:
        # Check one op per place: the first in program order.
        first_at_place = {id(op.place): op for op in reversed(graph.ops)}
        for op in reversed(first_at_place.values()):
            _check_place(graph, op)
    if form >= GraphForm.DIFFERENTIATED:
        _check_directives(graph)
    if form >= GraphForm.LAID_OUT:
        ops = graph.ops if old_form < GraphForm.LAID_OUT else moved
        if form >= GraphForm.TRANSFERRED > old_form:
            # From this form on, conversions must not cross nodes.
            conversions = [op for op in graph.ops if is_conversion(op.kind)]
            ops = tuple(dict.fromkeys([*ops, *conversions]))
        _check_layouts(graph, ops, form, cache)
    if form >= GraphForm.TRANSFERRED:
        _check_messages(graph)
    if form >= GraphForm.COPIED:
        _check_devices(graph, graph.ops if old_form < GraphForm.COPIED else moved)
    cache.graph, cache.form = graph, form


def _changed_ops(
    graph: Graph, old: Graph | None, is_laid_out: bool
) -> tuple[Sequence[Op], Sequence[Op]]:
    """Return the ops to check again: for places and layouts, and for types."""
    # The lists contain ops that differ from the old graph, and ops that depend on them.
    # Only changed ops can use a result with a new name. If the old graph has no layouts
    # yet, the first list is incomplete, and the caller checks the layouts of all ops.
    if old is None:
        return graph.ops, graph.ops
    known, producers = set(old.ops), old.producers
    moved: dict[Op, None] = {}
    retyped: dict[Op, None] = {}
    for op in graph.ops:
        if op in known:
            continue
        before = producers.get(op.results[0].name) if op.results else None
        if before is None:
            moved[op] = retyped[op] = None
            if len(op.results) < 2:
                continue
        if before is None or not _has_same_types(old, before, graph, op):
            retyped[op] = None
            retyped.update(dict.fromkeys(_dependents(graph, op)))
        if is_laid_out and not (
            before is not None
            and before.results is op.results
            and before.place is op.place
            and before.kind == op.kind
            and before.operands == op.operands
        ):
            moved[op] = None
            moved.update(dict.fromkeys(_dependents(graph, op)))
    return tuple(moved), tuple(retyped)


def _has_same_types(old: Graph, before: Op, graph: Graph, op: Op) -> bool:
    """Whether an op equals `before` of the old graph in kind, attributes and types."""
    if before.kind != op.kind or len(before.results) != len(op.results):
        return False
    if before.results is not op.results:
        for old_value, value in zip(before.results, op.results, strict=True):
            if old_value.type is not value.type or old_value.name != value.name:
                return False
    if before.operands != op.operands:
        if len(before.operands) != len(op.operands):
            return False
        if op.is_gradient and before.operands[:1] != op.operands[:1]:
            return False
        old_values, values = old.values, graph.values
        for old_name, name in zip(before.operands, op.operands, strict=True):
            if old_values[old_name].type is not values[name].type:
                return False
    # Types do not depend on the segment.
    return before.attrs is op.attrs or (
        before.attrs == {k: v for k, v in op.attrs.items() if k != "segment"}
    )


def _dependents(graph: Graph, op: Op) -> Iterator[Op]:
    """Yield the users of an op's results, and the gradient ops of the users."""
    for value in op.results:
        for user in graph.uses.get(value.name, ()):
            yield user
            if user.results and isinstance(user.results[-1].type, ResidualType):
                yield from graph.uses.get(user.results[-1].name, ())


def _check_directives(graph: Graph) -> None:
    updated = {op.attrs["group"] for op in graph.ops if op.structure.update == "value"}
    for op in graph.of_kind("minimize"):
        raise verification_error(op, "minimize is not differentiated")
    for group, op in graph.optimizers.items():
        if group not in updated:
            raise verification_error(op, "the optimizer updates no parameter")
        needed = "transformation" if op.attrs["rule"] == OPTAX else "learning_rate"
        if needed not in op.attrs:
            raise verification_error(op, f"the optimizer needs {needed}")


def _check_place(graph: Graph, op: Op) -> None:
    if op.place is None:
        raise verification_error(op, "the op has no place")
    try:
        graph.nodes(op)
    except PlacerError as error:
        raise verification_error(op, error.message) from error


def _check_layouts(
    graph: Graph, ops: Iterable[Op], form: GraphForm, cache: VerifierCache
) -> None:
    """Check the operand locations and the value layouts of some ops."""
    # Before messages exist, conversions may have operands on other nodes. A sum of
    # gradients may have operands on only some of its nodes; the others add nothing.
    producers = graph.producers
    layouts: dict[str, Layout] = {
        name: value.layout for name, value in graph.values.items() if value.layout
    }

    def needed(op: Op) -> Layouts:
        return tuple([layouts[name] for name in op.operands])

    def of_forward(op: Op) -> LayoutSignature:
        have = needed(op)
        numbers = (cache.type_number(graph.values[name].type) for name in op.operands)
        key = op.kind, cache.attrs_number(op.attrs), len(op.results), *have, *numbers
        if key not in cache.signatures:
            cache.signatures[key] = forward_signature(graph, op, have)
        return cache.signatures[key]

    for op in ops:
        for value in op.results:
            if value.layout is None:
                raise verification_error(op, f"'{value.name}' has no layout")
        converts = is_conversion(op.kind)
        if converts:
            _check_conversion(graph, op)
        _check_ranges(graph, op)
        crosses = converts or op.structure.moves
        may_cross_nodes = crosses and form < GraphForm.TRANSFERRED
        if may_cross_nodes:
            continue
        for name in op.operands:
            producer = producers[name]
            if producer.place is op.place:
                continue
            nodes, source_nodes = graph.nodes(op), graph.nodes(producer)
            if nodes == source_nodes:
                continue
            if op.kind == "accumulate" or converts or _is_message(op):
                if not set(source_nodes) & set(nodes):
                    raise verification_error(op, f"no node of the op has '{name}'")
                continue
            if not set(nodes) <= set(source_nodes):
                raise verification_error(
                    op, f"'{name}' is on {source_nodes}, not on {nodes}"
                )
        on_ranges = op.is_computed or op.structure.on_ranges
        if on_ranges and not converts:
            have = [layouts[name] for name in op.operands]
            gives = [layouts[value.name] for value in op.results]
            _check_signature(
                op, have, gives, signature(graph, op, layouts, needed, of_forward)
            )


def _check_signature(
    op: Op, have: Sequence[Layout], gives: Sequence[Layout], signature: LayoutSignature
) -> None:
    """Check the operand and result layouts of a computed op."""
    operand_layouts, result_layouts = signature
    for name, actual, expected in zip(op.operands, have, operand_layouts, strict=True):
        if actual != expected:
            raise verification_error(
                op, f"'{name}' has layout {actual}, but {op.kind} needs {expected}"
            )
    for value, actual, expected in zip(op.results, gives, result_layouts, strict=True):
        if actual != expected:
            raise verification_error(
                op,
                f"'{value.name}' has layout {actual}, but {op.kind} gives {expected}",
            )


def _check_conversion(graph: Graph, op: Op) -> None:
    have, need = graph.layout(op.operands[0]), graph.layout(op.name)
    kind = conversion_kind(have, need, len(graph.nodes(op)))
    if kind != op.kind:
        raise verification_error(
            op, f"{kind} converts from {have} to {need}, not {op.kind}"
        )


def _check_ranges(graph: Graph, op: Op) -> None:
    """Check that exactly the values with layout F have ranges in a group."""
    for value in op.results:
        if (value.layout == "F") != (value.flat is not None):
            raise verification_error(
                op,
                f"'{value.name}' has layout F without ranges, or ranges without layout F",
            )
        if value.flat is not None:
            numel = graph.tensor_type(value.name).numel()
            if value.flat.at + numel > value.flat.total:
                raise verification_error(op, f"'{value.name}' exceeds its group")


def _check_messages(graph: Graph) -> None:
    """Check that each message is sent once and later received once."""
    # A reply is sent after the op that waits for it.
    sent: dict[int, Op] = {}
    replies: dict[int, Op] = {}  # by edge: the op that waits for the reply
    received: set[int] = set()
    for op in graph.ops:
        sends, receives = op.sent_edge, op.received_edge
        if sends is not None:
            if sends in sent:
                raise verification_error(op, f"edge {sends} is sent twice")
            sent[sends] = op
            if sends in replies:
                _check_pair(graph, op, replies[sends])
                received.add(sends)
            if receives is not None:
                replies[receives] = op
        elif receives is not None:
            if receives not in sent or receives in received:
                message = f"no message of edge {receives} is in flight"
                raise verification_error(op, message)
            received.add(receives)
            _check_pair(graph, sent[receives], op)
    for edge, op in sent.items():
        if edge not in received:
            raise verification_error(op, f"edge {edge} is never received")
    for edge, op in replies.items():
        if edge not in sent:
            raise verification_error(op, f"the reply on edge {edge} is never sent")


def _is_message(op: Op) -> bool:
    return op.structure.sends or op.structure.receives


def _check_devices(graph: Graph, ops: Iterable[Op]) -> None:
    for op in ops:
        if op.structure.copies or op.structure.in_table:
            continue
        devices = graph.devices(op)
        for name in op.operands:
            producer = graph.producers[name]
            if producer.place is op.place:
                continue
            if (source := graph.devices(producer)) != devices:
                raise verification_error(
                    op, f"'{name}' is on {source}, not on {devices}"
                )


def _check_pair(graph: Graph, send: Op, listen: Op) -> None:
    origin = listen.attrs.get("from", listen.attrs.get("to"))
    if send.attrs["to"] != listen.place or origin != send.place:
        raise verification_error(
            listen, f"the message goes from {send.place} to {send.attrs['to']}"
        )
    types = [graph.values[name].type for name in send.operands]
    if types != [value.type for value in listen.results]:
        raise verification_error(
            listen, f"the message carries {', '.join(map(str, types))}"
        )
