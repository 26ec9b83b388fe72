"""Reads the section `graph`: converts scopes and ops to ops of a graph, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from placer import ops
from placer.config.checks import describe_value
from placer.errors import OpError, Span
from placer.graph.graph import Op, Value
from placer.ops.attributes import complete, condense
from placer.ops.composite import Composite, CompositeUse
from placer.ops.declaration import Declaration
from placer.place import Place
from placer.spec.context import Context
from placer.spec.decode import decode, report_missing
from placer.spec.op_kinds import (
    CALL,
    PARAMETER,
    TRACE,
    OpKind,
    describe_unknown_kind,
    format_op_error,
    op_kinds,
    read_attrs,
)
from placer.spec.schema import Scope
from placer.spec.tree import MappingNode, ScalarNode, SequenceNode, SpecNode
from placer.spec.user_functions import UserFunctions
from placer.spec.values import as_list, is_scope
from placer.types import BATCH, FLOATS, MAX_DIM, TensorType

NARROWER = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
"""The dtypes that JAX has only if the precision is float64, and their replacements."""


class Builder:
    """Builds the ops of one spec.

    Reports errors, but not those that follow from an earlier error.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._functions = UserFunctions(context, self._define)
        self._remat_scopes = 0  # their number so far
        self._remat: int | None = None
        self._types: dict[TensorType, TensorType] = {}

    @property
    def modules(self) -> tuple[str, ...]:
        """The Python modules beside the spec that the ops need."""
        return tuple(self._functions.modules)

    def build(self, section: SpecNode | None) -> None:
        """Build all ops of the section."""
        if isinstance(section, SequenceNode):
            if not section.items:
                self._context.problems.add("'graph' has no ops", section.span)
            self._entries(section.items, None)
        elif section is not None:
            message = f"'graph' must be a list, not {describe_value(section.value)}"
            self._context.problems.add(message, section.span, "start each op with '- '")

    def _entries(self, items: Iterable[SpecNode], place: Place | None) -> None:
        for node in items:
            if not isinstance(node, MappingNode):
                message = f"an op must be a mapping, not {describe_value(node.value)}"
                hint = "write {name: h1, op: fc, in: x, size: 10}"
                self._context.problems.add(message, node.span, hint)
            elif is_scope(node):
                self._scope(node, place)
            elif not self._op(node, place):
                self._context.values.mark_invalid(node)

    def _scope(self, node: MappingNode, outer: Place | None) -> None:
        good = decode(node, Scope, "a scope", self._context.problems)
        own = node.get("place") if good.get("place") is not None else None
        place = self._context.places.merge(outer, own)
        inner = good.get("ops")
        if isinstance(inner, SequenceNode):
            outermost = good.get("remat", False) and self._remat is None
            if outermost:
                self._remat_scopes += 1
                self._remat = self._remat_scopes
            self._entries(inner.items, place)
            if outermost:
                self._remat = None
        elif inner is not None:
            message = f"'ops' must be a list, not {describe_value(inner.value)}"
            self._context.problems.add(message, inner.span, "start each op with '- '")

    def _op(self, node: MappingNode, outer: Place | None) -> bool:
        """Add one op; report all its errors and return False if it has any."""
        name = self._name(node)
        kind_name = self._kind_name(node, name)
        if name is None or kind_name is None:
            return False
        span = node.entries["name"].span
        if kind_name == PARAMETER:
            return self._context.parameters.add_parameter_op(node, name, span)
        if kind_name in (CALL, TRACE):
            operands = self._operands(node, name)
            add = (
                self._functions.add_call
                if kind_name == CALL
                else self._functions.add_trace
            )
            return add(node, name, span, outer, operands)
        kind = op_kinds().get(kind_name)
        if kind is None:
            message, hint = describe_unknown_kind(kind_name)
            at = node.entries["op"]
            span = at.inner_span if isinstance(at, ScalarNode) else at.span
            self._context.problems.add(message, span, hint)
            self._operands(node, name)
            return False
        place = self._context.places.merge(outer, node.get_non_null("place"))
        attrs = read_attrs(kind, node, name, self._context.problems)
        operands = self._operands(node, name)
        if attrs is None or operands is None:
            return False
        try:
            return self._add(node, kind, name, span, place, attrs, operands)
        except OpError as error:
            self._report_op_error(error, node, kind, name, operands)
            return False

    def _add(
        self,
        node: MappingNode,
        kind: OpKind,
        name: str,
        span: Span,
        place: Place | None,
        attrs: dict[str, Any],
        operands: list[tuple[ScalarNode, TensorType]],
    ) -> bool:
        declaration = kind.declaration
        if self._context.is_float64 and "dtype" in kind.attrs:
            default = next(a.default for a in declaration.attrs if a.name == "dtype")
            if attrs.get("dtype", default) in FLOATS:
                attrs["dtype"] = "float64"
        elif (dtype := attrs.get("dtype")) in NARROWER:
            message = f"op '{name}' ({declaration.kind}) is {dtype} in a float32 model"
            hint = (
                "write precision: float64 at the top of the spec,"
                f" or {NARROWER[dtype]} here"
            )
            self._context.problems.add(message, node.entries["dtype"].span, hint)
            return False
        names = [operand.text for operand, _ in operands]
        types = [type_ for _, type_ in operands]
        if declaration.parameters is not None:
            declared = declaration.parameters(
                types, complete(declaration, attrs, for_parameters=True)
            )
            _check_sizes(declaration.kind, [each.type for each in declared], attrs)
            parameters = self._context.parameters.add_layer(declared, node, name, span)
            if parameters is None:
                return False
            names += (parameter for parameter, _ in parameters)
            types += (type_ for _, type_ in parameters)
        elif node.get_non_null("params") is not None:
            message = f"op '{name}' ({declaration.kind}) has no parameters"
            self._context.problems.add(message, node.keys["params"].span)
            return False
        if isinstance(declaration, Composite):
            full = complete(declaration, attrs)
            use = CompositeUse(name, names, types, full, self._context.seed)
            return self._composite(node, declaration, use, span, place)
        condensed = condense(declaration, attrs)
        results = declaration.infer(types, complete(declaration, condensed))
        _check_sizes(declaration.kind, results, attrs)
        outs = self._outs(node, name, declaration.result_names(len(results)))
        if outs is None:
            return False
        self._define(declaration, names, outs, results, condensed, place, span)
        return True

    def _composite(
        self,
        node: MappingNode,
        composite: Composite,
        use: CompositeUse,
        span: Span,
        place: Place | None,
    ) -> bool:
        """Add the ops of a composite; inner values have its name and a suffix."""
        composite.infer(use.types, use.attrs)
        results = self._outs(node, use.name, ("out",))
        if results is None:
            return False
        for part in composite.expand(use):
            if part.kind == "store":
                op = Op(part.kind, part.operands, (), {}, None, span)
                self._context.values.add(op)
                continue
            types = [self._context.values.type_of(name) for name in part.operands]
            declaration = ops.find(part.kind)
            condensed = condense(declaration, part.attrs)
            inferred = declaration.infer(types, complete(declaration, condensed))
            outs = [
                f"{use.name}{suffix}" if suffix else results[0]
                for suffix in part.results
            ]
            self._define(
                declaration, part.operands, outs, inferred, condensed, place, span
            )
        return True

    def _define(
        self,
        declaration: Declaration,
        operands: Iterable[str],
        outs: Iterable[str],
        results: Iterable[TensorType],
        condensed: dict[str, Any],
        place: Place | None,
        span: Span,
    ) -> None:
        same = self._types.setdefault  # share one object among equal types
        values = tuple(
            [Value(o, same(t, t)) for o, t in zip(outs, results, strict=True)]
        )
        attrs = (
            condensed if self._remat is None else {**condensed, "remat": self._remat}
        )
        op = Op(declaration.kind, tuple(operands), values, attrs, place, span)
        self._context.values.add(op, declaration.finalizer)

    def _name(self, node: MappingNode) -> str | None:
        name = node.get("name")
        if name is None:
            report_missing(node, "name", "an op", self._context.problems)
            return None
        text = self._context.names.read(name, "'name'")
        return text if text and self._context.names.define(text, name.span) else None

    def _kind_name(self, node: MappingNode, name: str | None) -> str | None:
        kind = node.get("op")
        if kind is None:
            report_missing(
                node, "op", f"op '{name}'" if name else "an op", self._context.problems
            )
            return None
        if not isinstance(kind, ScalarNode) or not isinstance(kind.value, str):
            message = (
                f"'op' must be the name of an op, not {describe_value(kind.value)}"
            )
            hint = (
                "the key of a scope is 'ops'"
                if isinstance(kind, SequenceNode)
                else None
            )
            self._context.problems.add(message, kind.span, hint)
            return None
        return kind.value

    def _operands(
        self, node: MappingNode, name: str
    ) -> list[tuple[ScalarNode, TensorType]] | None:
        """Return the operands in `in` with their types; None if one has an error."""
        section = node.get_non_null("in")
        if section is None:
            return []
        items = as_list(section)
        operands = []
        for item in items:
            if not isinstance(item, ScalarNode) or not isinstance(item.value, str):
                message = f"'in' must name values, not {describe_value(item.value)}"
                self._context.problems.add(message, item.span)
            elif (type_ := self._context.values.lookup(item, name)) is not None:
                operands.append((item, type_))
        return operands if len(operands) == len(items) else None

    def _outs(
        self, node: MappingNode, name: str, declared: tuple[str, ...]
    ) -> list[str] | None:
        """Return the names of the results; None if `out` has an error."""
        out = node.get_non_null("out")
        if out is None:
            if len(declared) == 1:
                return [name]
            return [f"{name}.{result}" for result in declared]
        items = as_list(out)
        if len(items) != len(declared):
            has = "1 result" if len(declared) == 1 else f"{len(declared)} results"
            message = f"op '{name}' has {has}, and 'out' names {len(items)}"
            self._context.problems.add(message, out.span)
            return None
        names: list[str] = []
        for item in items:
            text = self._context.names.read(item, "an output")
            # One result may have the op's own name.
            is_own = text == name and name not in names
            if text and (is_own or self._context.names.define(text, item.span)):
                names.append(text)
        return names if len(names) == len(items) else None

    def _report_op_error(
        self,
        error: OpError,
        node: MappingNode,
        kind: OpKind,
        name: str,
        operands: list[tuple[ScalarNode, TensorType]],
    ) -> None:
        """Report the error of an op, at the operand or attribute at fault."""
        entries = node.entries
        at = entries["op"]
        if error.attr is not None:
            at = entries.get(error.attr, at)
        elif error.operand is None:
            at = entries.get("in", at)
        elif error.operand < len(operands):
            at = operands[error.operand][0]
        else:
            at = entries.get("params", at)
        span = at.inner_span if isinstance(at, ScalarNode) else at.span
        message = format_op_error(error, kind.declaration.kind, name)
        self._context.problems.add(message, span, error.hint)


def _check_sizes(
    kind: str, types: Iterable[TensorType], attrs: Mapping[str, Any]
) -> None:
    """Raise OpError if a dimension of a result or parameter is over `MAX_DIM`."""
    largest = max((d for t in types for d in t.shape if d != BATCH), default=0)
    if largest > MAX_DIM:
        at_fault = (key for key, value in attrs.items() if _has_large(value))
        raise OpError(
            f"{kind} creates a dimension of {largest}, and the largest is {MAX_DIM}",
            attr=next(at_fault, None),
        )


def _has_large(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_large, value))
    return isinstance(value, int) and value > MAX_DIM
