"""The verifier: the checks of a graph before and after each pass.

What is checked depends on how far the graph is lowered: see `GraphForm`.
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


class GraphForm(IntEnum):
    """How far a graph is lowered. Each form has all the properties of those before
    it."""

    WRITTEN = 0
    """Names are defined once and before their use, and types are those declared."""
    DIFFERENTIATED = 1
    """There is no `minimize`, and every `optimizer` op updates some parameter."""
    PLACED = 2
    """Every op has a place, which exists in the cluster."""
    LAID_OUT = 3
    """Every value has a layout, and every op has its operands on its own nodes, in the
    layouts that it needs."""
    TRANSFERRED = 4
    """Values cross nodes only through pairs of `send` and `listen_and_serv`."""
    COPIED = 5
    """Every op has its operands on its own devices."""


def verify(graph: Graph, form: GraphForm, cache: VerifierCache | None = None) -> None:
    """Check that a graph has all the properties of a form.

    `cache` contains what earlier calls found valid. Of a graph that a pass made of the
    last verified one, only ops are checked that the pass changed, or whose operands it
    changed; with `PLACER_VERIFY=all` in the environment, all ops are. Raises GraphError,
    with the text of the op, at the first violation.
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
        # One op per place: the first of each, in program order.
        first_at_place = {id(op.place): op for op in reversed(graph.ops)}
        for op in reversed(first_at_place.values()):
            _check_place(graph, op)
    if form >= GraphForm.DIFFERENTIATED:
        _check_directives(graph)
    if form >= GraphForm.LAID_OUT:
        ops = graph.ops if old_form < GraphForm.LAID_OUT else moved
        if form >= GraphForm.TRANSFERRED > old_form:
            # Conversions may not cross nodes any more.
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
    """Return the ops whose places and layouts, and those whose types, may be wrong.

    Those are ops that differ from the ops that computed their results in the old graph,
    and the ops that depend on them. A result with a new name is used by changed ops
    only. If the old graph is not laid out yet, the first ops are not complete: layouts
    are then checked for all ops.
    """
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
    """Whether an op, and `before` in the old graph, have the same kind, attributes, and
    types of operands and results."""
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
    """Yield the ops whose checks depend on an op: those that use its results, and their
    gradient ops."""
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
    """Check where the operands of some ops are, and the layouts of their values.

    Conversions may have operands on other nodes until messages carry these. A sum of
    gradients may have operands on some of its nodes only: the others add nothing.
    """
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
                    raise verification_error(op, f"'{name}' is on no node of the op")
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
    """Check the layouts of the operands and the results of a computed op."""
    operand_layouts, result_layouts = signature
    for name, actual, expected in zip(op.operands, have, operand_layouts, strict=True):
        if actual != expected:
            raise verification_error(
                op, f"'{name}' is {actual}, and {op.kind} needs {expected} there"
            )
    for value, actual, expected in zip(op.results, gives, result_layouts, strict=True):
        if actual != expected:
            raise verification_error(
                op, f"'{value.name}' is {actual}, and {op.kind} gives {expected}"
            )


def _check_conversion(graph: Graph, op: Op) -> None:
    have, need = graph.layout(op.operands[0]), graph.layout(op.name)
    kind = conversion_kind(have, need, len(graph.nodes(op)))
    if kind != op.kind:
        raise verification_error(op, f"the conversion from {have} to {need} is {kind}")


def _check_ranges(graph: Graph, op: Op) -> None:
    """Check that the values of layout F, and only these, are in a group."""
    for value in op.results:
        if (value.layout == "F") != (value.flat is not None):
            raise verification_error(op, f"'{value.name}' has no ranges of its own")
        if value.flat is not None:
            numel = graph.tensor_type(value.name).numel()
            if value.flat.at + numel > value.flat.total:
                raise verification_error(op, f"'{value.name}' ends after its group")


def _check_messages(graph: Graph) -> None:
    """Check that every message is sent once, and afterwards received once. A reply is
    sent after the op that waits for it."""
    sent: dict[int, Op] = {}
    replies: dict[int, Op] = {}  # the op that waits for a message sent later
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
            raise verification_error(op, f"no reply of edge {edge} is sent")


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
