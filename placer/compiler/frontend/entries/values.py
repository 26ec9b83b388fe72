"""The values defined so far, their types, and the lookup of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.entries.op_entry import OpEntry, Operands
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
    as_list,
)
from placer.compiler.graph.graph import Op, Value
from placer.errors import Span, did_you_mean
from placer.ops.attributes import complete, condense
from placer.ops.declaration import Declaration
from placer.place.types import BATCH, TensorType
from placer.plan.settings.data.sources import POSITION
from placer.plan.settings.training.metrics import Finalizer

RECENT = 1000
"""The number of latest values that are compared with an unknown name for a hint."""


Inferred = tuple[Sequence[TensorType], Mapping[str, Any]]
"""The result types of an op, and its attributes."""


class Values:
    """The ops that have been built, in program order, and their values.

    Values of an op with an error are *invalid*: ops that use them are not checked. An
    input with an error has the type None.

    Attributes:
        finalizers: The finalizers of metrics, by name.
        section: The section `graph`.
    """

    def __init__(self, section: SpecNode | None, problems: Problems) -> None:
        self.ops: list[Op] = []
        self.types: dict[str, TensorType | None] = {}
        self.inputs: dict[str, TensorType | None] = {}
        self._written: dict[str, TensorType] = {}
        self._input_spans: dict[str, Span] = {}
        self._keys: set[str] = set()
        self._section = section
        self._invalid: set[str] = set()
        self.finalizers: dict[str, Finalizer] = {}
        self._equal_types: dict[TensorType, TensorType] = {}
        self._problems = problems

    def declare_input(
        self,
        name: str,
        type_: TensorType | None,
        span: Span,
        written: TensorType | None = None,
    ) -> None:
        """Declare an input.

        Args:
            name: The name of the input.
            type_: Its type in the graph; None after an error.
            span: The position in the spec.
            written: Its type in the spec.
        """
        self.inputs[name] = type_
        self._input_spans[name] = span
        if written is not None:
            self._written[name] = written

    def declare_keys(self, name: str, type_: TensorType) -> None:
        """Declare that an input holds 64-bit keys, with the type that keeps all bits. A
        float32 model has no 64-bit integers in JAX, so no computed op can use this
        input."""
        self.inputs[name] = type_
        self._keys.add(name)

    def add(self, op: Op, finalizer: Finalizer | None = None) -> None:
        """Append an op and its values. A metric also has a finalizer."""
        self.ops.append(op)
        if finalizer is not None:
            self.finalizers.update((value.name, finalizer) for value in op.results)
        for value in op.results:
            assert isinstance(value.type, TensorType)
            self.types[value.name] = value.type

    def infer(
        self,
        declaration: Declaration,
        operands: Iterable[str],
        attrs: Mapping[str, Any],
    ) -> Inferred:
        """Return the result types and the attributes of an op. Raises OpError."""
        condensed = condense(declaration, attrs)
        types = [self.type_of(name) for name in operands]
        return declaration.infer(types, complete(declaration, condensed)), condensed

    def define(
        self,
        entry: OpEntry,
        declaration: Declaration,
        operands: Iterable[str],
        outs: Iterable[str],
        inferred: Inferred,
    ) -> None:
        """Append the op of an entry, with the results `outs`."""
        types, attrs = inferred
        same = self._equal_types.setdefault  # Equal types share one object.
        results = [Value(o, same(t, t)) for o, t in zip(outs, types, strict=True)]
        if entry.remat is not None:
            attrs = {**attrs, "remat": entry.remat}
        at = entry.place, entry.span
        op = Op(declaration.kind, tuple(operands), tuple(results), attrs, *at)
        self.add(op, declaration.finalizer)

    def type_of(self, name: str) -> TensorType:
        """Return the type of a valid value. The first use of the position in the batch
        adds the op that reads it."""
        if name == POSITION and name not in self.types:
            result = Value(name, TensorType("uint32", (BATCH, 2)))
            self.add(Op("read", (), (result,), {"input": name}))
        type_ = self.types[name]
        assert type_ is not None, name
        return type_

    def lookup(
        self, node: ScalarNode, op: str, *, is_key: bool = False
    ) -> TensorType | None:
        """Return the type of the operand `node` of op `op`; None if it has an error.
        The first use of an input adds the op that reads it. `is_key`: the operand holds
        the keys of a sparse table, so a 64-bit input is read with all bits."""
        name = node.text
        if is_key and name in self._written and self._is_narrowed(name):
            if name in self.types:
                self._problems.add(
                    f"op '{op}': keys need 64 bits, but an earlier op reads '{name}'"
                    " as 32 bits",
                    node.inner_span,
                    "read the column as a second input, or use precision: float64",
                )
                return None
            self.declare_keys(name, self._written[name])
        if name in self.finalizers:
            self._problems.add(
                f"op '{op}': '{name}' is a metric, and a metric cannot be an operand",
                node.inner_span,
                "list it in train.metrics; to compute with it, use a loss or"
                " reduce_mean",
            )
            return None
        if name in self._keys and not is_key:
            self._problems.add(
                f"op '{op}': '{name}' is a 64-bit key; only an embedding with sparse:"
                " true accepts it",
                node.inner_span,
                "for other ops, write bins: N in its feature to get numbers below N,"
                " or use precision: float64",
            )
            return None
        if name in self.types:
            return self.types[name]
        if name in self.inputs:
            type_ = self.inputs[name]
            self.types[name] = type_
            if type_ is not None:
                result = (Value(name, type_),)
                source = self._input_spans[name]
                self.ops.append(Op("read", (), result, {"input": name}, None, source))
            return type_
        if not self.is_invalid(name):
            self.report_unknown(node, op)
        return None

    def read_in_full(self, name: str) -> TensorType | None:
        """Return the type of an input, with 64-bit integers unless an op reads it as 32
        bits. Returns None if `name` is not an input."""
        if name in self._written and name not in self.types and self._is_narrowed(name):
            self.declare_keys(name, self._written[name])
        return self.inputs.get(name)

    def declared_type(self, name: str) -> TensorType | None:
        """Return the type that the spec declares for an input; None for other
        values.
        """
        return self._written.get(name, self.inputs.get(name))

    def _is_narrowed(self, name: str) -> bool:
        """Return True if an input with 64-bit integers is read as 32 bits."""
        type_ = self.inputs[name]
        return type_ is not None and type_.dtype != self._written[name].dtype

    def read_operands(self, node: MappingNode, op: str) -> Operands | None:
        """Return the operands in `in` with their types; None after an error."""
        section = node.get_non_null("in")
        items = [] if section is None else as_list(section)
        sparse = node.get("sparse")
        is_sparse = isinstance(sparse, ScalarNode) and sparse.value is True
        operands = []
        for i, item in enumerate(items):
            value = self._problems.expect(item, ScalarNode, "'in' must name values")
            if value is None:
                continue
            if type_ := self.lookup(value, op, is_key=is_sparse and i == 0):
                operands.append((value, type_))
        return operands if len(operands) == len(items) else None

    def mark_invalid(self, node: MappingNode) -> None:
        """Mark the values of an op with an error as invalid."""
        for item in _defined(node):
            if item.text not in self.types:
                self._invalid.add(item.text)

    def is_invalid(self, name: str) -> bool:
        """Return True for an invalid value, or a parameter of an op with an error."""
        return name in self._invalid or name.partition(".")[0] in self._invalid

    def report_unknown(self, node: ScalarNode, op: str) -> None:
        """Report an undefined name. The hint says if it is defined later."""
        name = node.text
        line = self._lines.get(name.partition(".")[0], 0)
        hint: str | None = "put an op after the ops that compute its operands"
        if line > node.span.line:
            message = f"{quote(name)} is defined later, on line {line}"
        elif name in self._lines:
            message = f"{quote(name)} is not defined before this op"
        else:
            message = f"unknown value {quote(name)}"
            recent = islice(reversed(self.types), RECENT)
            hint = did_you_mean(name, {*recent, *self.inputs})
        self._problems.add(f"op '{op}': {message}", node.inner_span, hint)

    @cached_property
    def _lines(self) -> dict[str, int]:
        lines: dict[str, int] = {}
        for node in _ops(self._section):
            for item in _defined(node):
                lines.setdefault(item.text, item.span.line)
        return lines

    def check_scalar(self, node: ScalarNode, what: str) -> bool:
        """Return True if `node` names a float scalar, or a metric if `what` is
        `metric`. Otherwise reports an error. `what` is `loss` or `metric`."""
        name = node.text
        type_ = self.types.get(name)
        if type_ is None:
            if name not in self.types and not self.is_invalid(name):
                hint = did_you_mean(name, self._scalars(what))
                message = f"unknown {what} {quote(name)}"
                self._problems.add(message, node.inner_span, hint)
            return False
        if name in self.finalizers:
            if what == "loss":
                message = (
                    f"'{name}' is a metric; a metric has no gradient, so it cannot be"
                    " minimized"
                )
                self._problems.add(message, node.inner_span, "minimize a loss")
            return what != "loss"
        if type_.shape or not type_.is_float:
            message = f"a {what} must be a float scalar, but '{name}' is {type_}"
            advice = "reduce it with reduce_mean or reduce_sum"
            hint = advice if type_.is_float else None
            self._problems.add(message, node.inner_span, hint)
            return False
        return True

    def _scalars(self, what: str) -> list[str]:
        recent = islice(reversed(self.types.items()), RECENT)
        return [
            n
            for n, t in recent
            if (t and t.is_float and not t.shape)
            or (n in self.finalizers and what != "loss")
        ]


def is_scope(node: MappingNode) -> bool:
    """Return True if an entry of the graph is a scope, not an op."""
    return "ops" in node.entries and "op" not in node.entries


def _defined(node: MappingNode) -> Iterator[ScalarNode]:
    for key in ("name", "out"):
        for item in as_list(node.entries[key]) if key in node.entries else ():
            if isinstance(item, ScalarNode):
                yield item


def _ops(section: SpecNode | None) -> Iterator[MappingNode]:
    for node in section.items if isinstance(section, SequenceNode) else ():
        if isinstance(node, MappingNode):
            if is_scope(node):
                yield from _ops(node.entries["ops"])
            else:
                yield node
