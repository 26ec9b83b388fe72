"""The values defined so far, their types, and what a name refers to."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Types
from functools import cached_property
from itertools import islice

from placer.config.metrics import Final
from placer.config.sources import POSITION
from placer.errors import Span, did_you_mean
from placer.graph.graph import Op, Value
from placer.spec.names import quoted
from placer.spec.problems import Problems
from placer.spec.tree import Mapping, Node, Scalar, Sequence
from placer.types import BATCH, TensorType

RECENT = 1000
"""Among so many values, the last ones, the nearest name is sought."""


class Values:
    """The ops built so far in program order, and what they define.

    A value of an op that is wrong is *spoilt*: what uses it is not checked further. A
    type of None is that of an input that is wrong.
    """

    def __init__(
        self,
        inputs: Types[str, TensorType | None],
        spans: Types[str, Span],
        section: Node | None,
        problems: Problems,
    ) -> None:
        self.ops: list[Op] = []
        self.types: dict[str, TensorType | None] = {}
        self.inputs = inputs
        self._spans = spans
        self._section = section
        self._spoilt: set[str] = set()
        self._finals: dict[str, Final] = {}
        self._problems = problems

    def add(self, op: Op, final: Final | None = None) -> None:
        """The next op, and the values that it defines: of a metric, with its final."""
        self.ops.append(op)
        if final is not None:
            self._finals.update((value.name, final) for value in op.results)
        for value in op.results:
            assert isinstance(value.type, TensorType)
            self.types[value.name] = value.type

    def type_of(self, name: str) -> TensorType:
        """The type of a value that is right; the batch's position is read where it is
        first asked for."""
        if name == POSITION and name not in self.types:
            result = Value(name, TensorType("uint32", (BATCH, 2)))
            self.add(Op("read", (), (result,), {"input": name}))
        found = self.types[name]
        assert found is not None, name
        return found

    def lookup(self, node: Scalar, op: str) -> TensorType | None:
        """The type of the value that op `op` names; None, told, when it has none.

        An input is read where it is first used.
        """
        name = node.text
        if name in self._finals:
            self._problems.add(
                f"op '{op}': '{name}' is a metric, which no op takes",
                node.inside,
                "name it in train.metrics; compute with what a loss or reduce_mean gives",
            )
            return None
        try:
            return self.types[name]
        except KeyError:
            pass
        if name in self.inputs:
            type_ = self.inputs[name]
            self.types[name] = type_
            if type_ is not None:
                result = (Value(name, type_),)
                source = self._spans[name]
                self.ops.append(Op("read", (), result, {"input": name}, None, source))
            return type_
        if not self.is_spoilt(name):
            self.unknown(node, op)
        return None

    def final(self, name: str) -> Final | None:
        """How the number of a metric is made; None for any other value."""
        return self._finals.get(name)

    def spoil(self, node: Mapping) -> None:
        """What an op that is wrong defines is not checked further."""
        for item in _defined(node):
            if item.text not in self.types:
                self._spoilt.add(item.text)

    def is_spoilt(self, name: str) -> bool:
        return name in self._spoilt or name.partition(".")[0] in self._spoilt

    def unknown(self, node: Scalar, op: str) -> None:
        """Tell of a name that is not defined here: perhaps it is further down."""
        name = node.text
        line = self._lines.get(name.partition(".")[0], 0)
        hint: str | None = "an op stands after those whose results it takes"
        if line > node.span.line:
            message = f"{quoted(name)} is defined later, on line {line}"
        elif name in self._lines:
            message = f"{quoted(name)} is not defined before this op"
        else:
            message = f"unknown value {quoted(name)}"
            recent = islice(reversed(self.types), RECENT)
            hint = did_you_mean(name, {*recent, *self.inputs})
        self._problems.add(f"op '{op}': {message}", node.inside, hint)

    @cached_property
    def _lines(self) -> dict[str, int]:
        """Every name that any op of the section defines, and its line."""
        lines: dict[str, int] = {}
        for node in _ops(self._section):
            for item in _defined(node):
                lines.setdefault(item.text, item.span.line)
        return lines

    def is_scalar(self, node: Scalar, what: str) -> bool:
        """Whether a name is that of a float scalar, or of a metric where `what` is not a
        loss; tells what it is if not."""
        name = node.text
        type_ = self.types.get(name)
        if type_ is None:
            if name not in self.types and not self.is_spoilt(name):
                hint = did_you_mean(name, self._scalars(what))
                self._problems.add(f"unknown {what} {quoted(name)}", node.inside, hint)
            return False
        if name in self._finals:
            if what == "loss":
                message = f"'{name}' is a metric: it has no gradient to minimise by"
                self._problems.add(message, node.inside, "minimise a loss")
            return what != "loss"
        if type_.shape or not type_.is_float:
            message = f"a {what} must be a float scalar, '{name}' is {type_}"
            hint = "reduce it with reduce_mean or reduce_sum"
            self._problems.add(message, node.inside, hint if type_.is_float else None)
            return False
        return True

    def _scalars(self, what: str) -> list[str]:
        recent = islice(reversed(self.types.items()), RECENT)
        return [
            n
            for n, t in recent
            if (t and t.is_float and not t.shape)
            or (n in self._finals and what != "loss")
        ]


def is_block(node: Mapping) -> bool:
    """Whether an entry of the graph holds ops, and is none."""
    return "ops" in node.entries and "op" not in node.entries


def several(node: Node) -> list[Node]:
    """The items of a list, or the one that stands without brackets."""
    return node.items if isinstance(node, Sequence) else [node]


def _defined(node: Mapping) -> Iterator[Scalar]:
    """The names that an op's mapping defines: its own and its outputs'."""
    for key in ("name", "out"):
        for item in several(node.entries[key]) if key in node.entries else ():
            if isinstance(item, Scalar):
                yield item


def _ops(section: Node | None) -> Iterator[Mapping]:
    """Every op's mapping, in program order."""
    for node in section.items if isinstance(section, Sequence) else ():
        if isinstance(node, Mapping):
            if is_block(node):
                yield from _ops(node.entries["ops"])
            else:
                yield node
