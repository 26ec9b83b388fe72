"""The section `graph`: blocks and ops to the ops of a graph, in program order."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as Attributes
from typing import Any

from placer import ops
from placer.config.checks import shown
from placer.errors import OpError, Span
from placer.graph.graph import Op, Value
from placer.ops.attributes import complete, condense
from placer.ops.composite import Composite, Written
from placer.ops.declaration import Declaration
from placer.place import Place
from placer.spec.context import Context
from placer.spec.decode import decode, missing
from placer.spec.op_kinds import (
    CALL,
    PARAMETER,
    TRACE,
    Kind,
    kinds,
    read_attrs,
    told,
    unknown_kind,
)
from placer.spec.schema import Block
from placer.spec.tree import Mapping, Node, Scalar, Sequence
from placer.spec.user_functions import Calls
from placer.spec.values import is_block, several
from placer.types import BATCH, FLOATS, LARGEST, TensorType

NARROWER = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
"""The dtypes that JAX has only where the precision is float64, and what it would take."""


class Builder:
    """Builds the ops of one spec; mistakes are told and what depends on them is not."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls = Calls(context, self._define)
        self._blocks = 0  # with remat, so far
        self._remat: int | None = None
        self._types: dict[TensorType, TensorType] = {}

    @property
    def modules(self) -> tuple[str, ...]:
        """The Python modules that the ops need."""
        return tuple(self._calls.modules)

    def build(self, section: Node | None) -> None:
        """Build every op of the section."""
        if isinstance(section, Sequence):
            if not section.items:
                self._context.problems.add("'graph' has no op", section.span)
            self._entries(section.items, None)
        elif section is not None:
            message = f"'graph' must be a list, not {shown(section.value)}"
            self._context.problems.add(message, section.span, "begin each op with '- '")

    def _entries(self, items: Iterable[Node], place: Place | None) -> None:
        for node in items:
            if not isinstance(node, Mapping):
                message = f"an op must be a mapping, not {shown(node.value)}"
                hint = "write {name: h1, op: fc, in: x, size: 10}"
                self._context.problems.add(message, node.span, hint)
            elif is_block(node):
                self._block(node, place)
            elif not self._op(node, place):
                self._context.values.spoil(node)

    def _block(self, node: Mapping, outer: Place | None) -> None:
        good = decode(node, Block, "a block", self._context.problems)
        said = node.get("place") if good.get("place") is not None else None
        place = self._context.places.merge(outer, said)
        inner = good.get("ops")
        if isinstance(inner, Sequence):
            outermost = good.get("remat", False) and self._remat is None
            if outermost:
                self._blocks += 1
                self._remat = self._blocks
            self._entries(inner.items, place)
            if outermost:
                self._remat = None
        elif inner is not None:
            message = f"'ops' must be a list, not {shown(inner.value)}"
            self._context.problems.add(message, inner.span, "begin each op with '- '")

    def _op(self, node: Mapping, outer: Place | None) -> bool:
        """Add one op; False, with every mistake told, when it is wrong."""
        name = self._name(node)
        kind_name = self._kind_name(node, name)
        if name is None or kind_name is None:
            return False
        span = node.entries["name"].span
        if kind_name == PARAMETER:
            return self._context.parameters.of_op(node, name, span)
        if kind_name in (CALL, TRACE):
            operands = self._operands(node, name)
            add = self._calls.add if kind_name == CALL else self._calls.add_regions
            return add(node, name, span, outer, operands)
        kind = kinds().get(kind_name)
        if kind is None:
            message, hint = unknown_kind(kind_name)
            at = node.entries["op"]
            span = at.inside if isinstance(at, Scalar) else at.span
            self._context.problems.add(message, span, hint)
            self._operands(node, name)
            return False
        place = self._context.places.merge(outer, node.given("place"))
        attrs = read_attrs(kind, node, name, self._context.problems)
        operands = self._operands(node, name)
        if attrs is None or operands is None:
            return False
        try:
            return self._add(node, kind, name, span, place, attrs, operands)
        except OpError as error:
            self._tell(error, node, kind, name, operands)
            return False

    def _add(
        self,
        node: Mapping,
        kind: Kind,
        name: str,
        span: Span,
        place: Place | None,
        attrs: dict[str, Any],
        operands: list[tuple[Scalar, TensorType]],
    ) -> bool:
        declaration = kind.declaration
        if self._context.wide and "dtype" in kind.attrs:
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
            made = declaration.parameters(
                types, complete(declaration, attrs, build=True)
            )
            _check_sizes(declaration.kind, [each.type for each in made], attrs)
            own = self._context.parameters.of_layer(made, node, name, span)
            if own is None:
                return False
            names += (parameter for parameter, _ in own)
            types += (type_ for _, type_ in own)
        elif node.given("params") is not None:
            message = f"op '{name}' ({declaration.kind}) has no parameters"
            self._context.problems.add(message, node.keys["params"].span)
            return False
        if isinstance(declaration, Composite):
            full = complete(declaration, attrs)
            written = Written(name, names, types, full, self._context.seed)
            return self._composite(node, declaration, written, span, place)
        held = condense(declaration, attrs)
        results = declaration.infer(types, complete(declaration, held))
        _check_sizes(declaration.kind, results, attrs)
        outs = self._outs(node, name, declaration.named(len(results)))
        if outs is None:
            return False
        self._define(declaration, names, outs, results, held, place, span)
        return True

    def _composite(
        self,
        node: Mapping,
        composite: Composite,
        written: Written,
        span: Span,
        place: Place | None,
    ) -> bool:
        """Add the ops of a composite; its other values have the op's name in theirs."""
        composite.infer(written.types, written.attrs)
        results = self._outs(node, written.name, ("out",))
        if results is None:
            return False
        for part in composite.parts(written):
            if part.kind == "store":
                op = Op(part.kind, part.operands, (), {}, None, span)
                self._context.values.add(op)
                continue
            types = [self._context.values.type_of(name) for name in part.operands]
            declaration = ops.find(part.kind)
            held = condense(declaration, part.attrs)
            made = declaration.infer(types, complete(declaration, held))
            outs = [
                f"{written.name}{suffix}" if suffix else results[0]
                for suffix in part.results
            ]
            self._define(declaration, part.operands, outs, made, held, place, span)
        return True

    def _define(
        self,
        declaration: Declaration,
        operands: Iterable[str],
        outs: Iterable[str],
        results: Iterable[TensorType],
        held: dict[str, Any],
        place: Place | None,
        span: Span,
    ) -> None:
        same = self._types.setdefault  # equal types are one object: few are
        values = tuple(
            [Value(o, same(t, t)) for o, t in zip(outs, results, strict=True)]
        )
        attrs = held if self._remat is None else {**held, "remat": self._remat}
        op = Op(declaration.kind, tuple(operands), values, attrs, place, span)
        self._context.values.add(op, declaration.final)

    def _name(self, node: Mapping) -> str | None:
        name = node.get("name")
        if name is None:
            missing(node, "name", "an op", self._context.problems)
            return None
        text = self._context.names.read(name, "'name'")
        return text if text and self._context.names.define(text, name.span) else None

    def _kind_name(self, node: Mapping, name: str | None) -> str | None:
        kind = node.get("op")
        if kind is None:
            missing(
                node, "op", f"op '{name}'" if name else "an op", self._context.problems
            )
            return None
        if not isinstance(kind, Scalar) or not isinstance(kind.value, str):
            message = f"'op' must be the name of an op, not {shown(kind.value)}"
            hint = "a block has 'ops'" if isinstance(kind, Sequence) else None
            self._context.problems.add(message, kind.span, hint)
            return None
        return kind.value

    def _operands(
        self, node: Mapping, name: str
    ) -> list[tuple[Scalar, TensorType]] | None:
        """The values that `in` names; None when one is wrong or depends on a mistake."""
        section = node.given("in")
        if section is None:
            return []
        items = several(section)
        found = []
        for item in items:
            if not isinstance(item, Scalar) or not isinstance(item.value, str):
                message = f"'in' must name values, not {shown(item.value)}"
                self._context.problems.add(message, item.span)
            elif (type_ := self._context.values.lookup(item, name)) is not None:
                found.append((item, type_))
        return found if len(found) == len(items) else None

    def _outs(
        self, node: Mapping, name: str, declared: tuple[str, ...]
    ) -> list[str] | None:
        """The names of the results; None when they are wrong or not as many."""
        out = node.given("out")
        if out is None:
            if len(declared) == 1:
                return [name]
            return [f"{name}.{result}" for result in declared]
        items = several(out)
        if len(items) != len(declared):
            has = "1 result" if len(declared) == 1 else f"{len(declared)} results"
            message = f"op '{name}' has {has}, and 'out' names {len(items)}"
            self._context.problems.add(message, out.span)
            return None
        found: list[str] = []
        for item in items:
            text = self._context.names.read(item, "an output")
            # One output may have the op's own name.
            again = text == name and name not in found
            if text and (again or self._context.names.define(text, item.span)):
                found.append(text)
        return found if len(found) == len(items) else None

    def _tell(
        self,
        error: OpError,
        node: Mapping,
        kind: Kind,
        name: str,
        operands: list[tuple[Scalar, TensorType]],
    ) -> None:
        """An op's error, with its caret at the operand or the attribute at fault."""
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
        span = at.inside if isinstance(at, Scalar) else at.span
        message = told(error, kind.declaration.kind, name)
        self._context.problems.add(message, span, error.hint)


def _check_sizes(
    kind: str, types: Iterable[TensorType], attrs: Attributes[str, Any]
) -> None:
    """OpError unless the dimensions that an op makes can be counted in 32 bits."""
    most = max((d for t in types for d in t.shape if d != BATCH), default=0)
    if most > LARGEST:
        large = (key for key, value in attrs.items() if _has_large(value))
        raise OpError(
            f"{kind} makes a dimension of {most}, and the largest is {LARGEST}",
            attr=next(large, None),
        )


def _has_large(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_large, value))
    return isinstance(value, int) and value > LARGEST
