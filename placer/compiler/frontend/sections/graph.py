"""Reads the section `graph`: converts scopes and ops to ops of a graph, in order.

An error is reported once: its consequences are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from placer import ops
from placer.compiler.frontend.entries.call_op import read_function
from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.entries.op_entry import OpEntry, Operands, report_op_error
from placer.compiler.frontend.entries.op_kinds import (
    CALL,
    PARAMETER,
    TRACE,
    OpKind,
    op_kinds,
    read_attrs,
)
from placer.compiler.frontend.entries.user_functions import add_call, add_trace
from placer.compiler.frontend.entries.values import is_scope
from placer.compiler.frontend.op_names import op_hint
from placer.compiler.frontend.schema import Scope
from placer.compiler.frontend.yaml.decode import decode, report_missing
from placer.compiler.frontend.yaml.problems import all_or_none
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
    as_list,
)
from placer.compiler.graph.graph import Op
from placer.errors import OpError
from placer.ops.attributes import complete
from placer.ops.composite import Composite, CompositeUse
from placer.place import Place
from placer.place.types import FLOATS, MAX_DIM, TensorType

NARROWER = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
"""Dtypes that JAX has only with precision float64, and their replacements."""


def build_ops(section: SpecNode | None, context: Context) -> None:
    """Build all ops of the section."""
    if isinstance(section, SequenceNode) and not section.items:
        context.problems.add("'graph' has no ops", section.span)
    _build_entries(section, "graph", None, None, context)


def _build_entries(
    section: SpecNode | None,
    key: str,
    place: Place | None,
    remat: int | None,
    context: Context,
) -> None:
    expected, hint = f"'{key}' must be a list", "start each op with '- '"
    entries = context.problems.expect(section, SequenceNode, expected, hint)
    hint = "write {name: h1, op: fc, in: x, size: 10}"
    for item in entries.items if entries else ():
        expected = "an op must be a mapping"
        node = context.problems.expect(item, MappingNode, expected, hint)
        if node is None:
            continue
        if is_scope(node):
            _build_scope(node, place, remat, context)
        elif not _build_op(node, place, remat, context):
            context.values.mark_invalid(node)


def _build_scope(
    node: MappingNode, outer: Place | None, remat: int | None, context: Context
) -> None:
    good = decode(node, Scope, "a scope", context.problems)
    own = node.get("place") if good.get("place") is not None else None
    place = context.places.merge(outer, own)
    written = node.keys.get("remat")
    if remat is not None and written is not None and good.get("remat") is not None:
        value = "true" if good["remat"] else "false"
        message = f"'remat: {value}' has no effect: an outer scope has 'remat'"
        hint = "leave it out, or move the ops to a separate scope"
        context.problems.add(message, written.span, hint)
    elif good.get("remat", False):
        remat = next(context.remat_numbers)
    _build_entries(good.get("ops"), "ops", place, remat, context)


def _build_op(
    node: MappingNode, outer: Place | None, remat: int | None, context: Context
) -> bool:
    """Add one op. Report its errors and return False if it has any."""
    name = _read_name(node, context)
    kind_name = _read_kind_name(node, name, context)
    if name is None or kind_name is None:
        return False
    span = node.entries["name"].span
    if kind_name == PARAMETER:
        entry = OpEntry(node, name, kind_name, span, None, None)
        return context.parameters.add_parameter_op(entry)
    operands = context.values.read_operands(node, name)
    kind = op_kinds().get(kind_name)
    if kind is None and kind_name not in (CALL, TRACE):
        at = node.entries["op"]
        assert isinstance(at, ScalarNode)
        hint = op_hint(kind_name, [*op_kinds(), PARAMETER, CALL, TRACE])
        context.problems.add(f"unknown op '{kind_name}'", at.inner_span, hint)
        return False
    place = context.places.merge(outer, node.get_non_null("place"))
    entry = OpEntry(node, name, kind_name, span, place, remat)
    try:
        if kind is not None:
            return _add_op(entry, kind, operands, context)
        add = add_call if kind_name == CALL else add_trace
        return add(entry, operands, context)
    except OpError as error:
        if kind is not None and error.hint is None:
            error.hint = _dtype_hint(error, kind, operands or (), context)
        report_op_error(error, entry, operands or (), context.problems)
        return False


def _dtype_hint(
    error: OpError, kind: OpKind, operands: Operands, context: Context
) -> str | None:
    """Return how to convert an operand to the dtype that an op needs. No hint if the op
    also has integer operands: the operand may be in the wrong place."""
    if error.conversion is None or error.conversion[0] >= len(operands):
        return None
    index, dtype = error.conversion
    if dtype == "float":
        if any(operand.dtype == "integer" for operand in kind.operands):
            return None
        dtype = "float64" if context.is_float64 else "float32"
    node, type_ = operands[index]
    declared = context.values.declared_type(node.text)
    if declared is None:
        return f"convert '{node.text}' with the op cast, dtype: {dtype}"
    right = TensorType(dtype, type_.shape)
    return (
        f"declare the input '{node.text}' {right} instead of {declared}, or convert it"
        f" with the op cast, dtype: {dtype}"
    )


def _add_op(
    entry: OpEntry, kind: OpKind, operands: Operands | None, context: Context
) -> bool:
    attrs = read_attrs(kind, entry, context.problems)
    for attr in kind.attrs:
        if attr.is_function and not read_function(entry.node.get(attr.name), context):
            return False
    if attrs is None or operands is None or not _fit_dtype(attrs, kind, entry, context):
        return False
    names = [operand.text for operand, _ in operands]
    if kind.creates is not None:
        completed = complete(kind, attrs, for_parameters=True)
        declared = kind.parameters([type_ for _, type_ in operands], completed)
        _check_sizes(kind.kind, [each.type for each in declared], attrs)
        parameters = context.parameters.add_layer(declared, entry)
        if parameters is None:
            return False
        names += parameters
    elif entry.node.get_non_null("params") is not None:
        span = entry.node.keys["params"].span
        context.problems.add(f"{entry.where} has no parameters", span)
        return False
    if isinstance(kind, Composite):
        types = [context.values.type_of(name) for name in names]
        full = complete(kind, attrs)
        kept = context.parameters.kept_states
        use = CompositeUse(entry.name, names, types, full, context.seed, kept)
        return _add_composite(entry, kind, use, context)
    inferred = context.values.infer(kind, names, attrs)
    results, _ = inferred
    _check_sizes(kind.kind, results, attrs)
    outs = _read_outs(entry, kind.result_names(len(results)), context)
    if outs is None:
        return False
    context.values.define(entry, kind, names, outs, inferred)
    return True


def _fit_dtype(
    attrs: dict[str, Any], kind: OpKind, entry: OpEntry, context: Context
) -> bool:
    """Widen the attribute `dtype` in a float64 model; report 64 bits in a float32
    model. Returns False on errors."""
    dtype = next((attr for attr in kind.attrs if attr.name == "dtype"), None)
    if dtype is None:
        return True
    written = attrs.get("dtype", dtype.default)
    if context.is_float64 and written in FLOATS:
        attrs["dtype"] = "float64"
    elif not context.is_float64 and attrs.get("dtype") in NARROWER:
        context.problems.add(
            f"{entry.where} is {written}, but the model is float32",
            entry.node.entries["dtype"].span,
            "write precision: float64 at the top of the spec,"
            f" or {NARROWER[written]} here",
        )
        return False
    return True


def _add_composite(
    entry: OpEntry, composite: Composite, use: CompositeUse, context: Context
) -> bool:
    """Add the ops of a composite. Inner values are called by its name and a suffix."""
    values = context.values
    composite.infer(use.types, use.attrs)
    results = _read_outs(entry, ("out",), context)
    if results is None:
        return False
    for part in composite.expand(use):
        if part.kind == "store":
            values.add(Op(part.kind, part.operands, (), {}, None, entry.span))
            continue
        declaration = ops.find(part.kind)
        inferred = values.infer(declaration, part.operands, part.attrs)
        outs = [
            f"{use.name}{suffix}" if suffix else results[0] for suffix in part.results
        ]
        values.define(entry, declaration, part.operands, outs, inferred)
    return True


def _read_name(node: MappingNode, context: Context) -> str | None:
    name = node.get("name")
    if name is None:
        report_missing(node, "name", "an op", context.problems)
        return None
    text = context.names.read(name, "'name'")
    return text if text and context.names.define(text, name.span) else None


def _read_kind_name(
    node: MappingNode, name: str | None, context: Context
) -> str | None:
    kind = node.get("op")
    if kind is None:
        where = f"op '{name}'" if name else "an op"
        report_missing(node, "op", where, context.problems)
    hint = (
        "the ops of a scope are listed in 'ops'"
        if isinstance(kind, SequenceNode)
        else None
    )
    expected = "'op' must be the name of an op"
    text = context.problems.expect(kind, ScalarNode, expected, hint)
    return None if text is None else text.text


def _read_outs(
    entry: OpEntry, declared: Sequence[str], context: Context
) -> list[str] | None:
    out = entry.node.get_non_null("out")
    if out is None:
        if len(declared) == 1:
            return [entry.name]
        return [f"{entry.name}.{result}" for result in declared]
    items = as_list(out)
    if len(items) != len(declared):
        has = "1 result" if len(declared) == 1 else f"{len(declared)} results"
        message = f"op '{entry.name}' has {has}, but 'out' lists {len(items)}"
        context.problems.add(message, out.span)
        return None
    return all_or_none(context.names.read_result(item, entry.name) for item in items)


def _check_sizes(
    kind: str, types: Iterable[TensorType], attrs: Mapping[str, Any]
) -> None:
    largest = max((d for t in types for d in t.shape if isinstance(d, int)), default=0)
    if largest > MAX_DIM:
        at_fault = (key for key, value in attrs.items() if _has_large(value))
        message = f"creates a dimension of {largest}; the largest allowed is {MAX_DIM}"
        raise OpError(message, attr=next(at_fault, None)).of(kind)


def _has_large(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_large, value))
    return isinstance(value, int) and value > MAX_DIM
