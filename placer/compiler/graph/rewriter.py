"""Builds the graph after a pass from the graph before it, op by op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.graph.graph import Graph, Op, Value
from placer.place.layouts import Layout
from placer.place.layouts.ranges import Flat


class Rewriter:
    """Builds a graph from another one, op by op in program order.

    Iterating over the rewriter yields the ops of the old graph, which does not change.
    The loop body decides what replaces the current op; without a call, the op stays.
    The time is proportional to the number of ops, including inserted ones.

    Args:
        graph: The old graph.

    Example: copy the operand of each `relu`.

        >>> from placer.compiler.graph.text import parse_graph, print_graph
        >>> old = parse_graph('''graph @model nodes(worker: 1) batch(8) {
        ...   %x: float32[batch, 4] = read() {input = x}
        ...   %h: float32[batch, 4] = relu(%x)
        ... }
        ... ''')
        >>> rewriter = Rewriter(old)
        >>> for op in rewriter:
        ...     if op.kind == "relu":
        ...         (name,) = op.operands
        ...         copy = rewriter.new_value(name, "copy")
        ...         rewriter.insert(Op("identity", (name,), (copy,)))
        ...         rewriter.replace_operands({name: copy.name})
        >>> print(print_graph(rewriter.graph()), end="")
        graph @model nodes(worker: 1) batch(8) {
          %x: float32[batch, 4] = read() {input = x}
          %x.copy: float32[batch, 4] = identity(%x)
          %h: float32[batch, 4] = relu(%x.copy)
        }
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ops: list[Op] = []
        self._current: Op | None = None
        self._after: list[Op] = []
        self._is_complete = False

    def __iter__(self) -> Iterator[Op]:
        assert not self._is_complete, "a rewriter can be iterated only once"
        for op in self._graph.ops:
            self._current = op
            yield op
            if self._current is not None:
                self._ops.append(self._current)
            if self._after:
                self._ops += self._after
                self._after = []
        self._current, self._is_complete = None, True

    @cached_property
    def _used_names(self) -> set[str]:
        return set(self._graph.values)

    def new_name(self, wish: str) -> str:
        """Return an unused name: `wish`, or `wish.1`, `wish.2`, … if it is taken."""
        return unique_name(wish, self._used_names)

    def new_value(
        self,
        like: str,
        suffix: str,
        *,
        layout: Layout | None = None,
        flat: Flat | None = None,
    ) -> Value:
        """Return a copy of the old graph's value `%h` with the new name `%h.suffix`.
        `layout` and `flat`, if given, replace those of the value."""
        value, name = self._graph.values[like], self.new_name(f"{like}.{suffix}")
        return Value(
            name,
            value.type,
            layout or value.layout,
            value.microbatch_layout,
            flat or value.flat,
        )

    def insert(self, *ops: Op) -> None:
        """Insert ops before the current op, or at the end after the loop."""
        self._ops += ops

    def insert_after(self, *ops: Op) -> None:
        """Insert ops after the current op, and after ops already inserted there."""
        assert self._current is not None, _NO_OP
        self._after += ops

    def replace(self, *ops: Op) -> None:
        """Replace the current op. The last of `ops` becomes the current op."""
        assert self._current is not None, _NO_OP
        self._ops += ops[:-1]
        self._current = ops[-1] if ops else None

    def replace_operands(self, names: Mapping[str, str]) -> None:
        """Rename operands of the current op, by `names` from old to new names."""
        op = self._current
        assert op is not None, _NO_OP
        if not names.keys().isdisjoint(op.operands):
            operands = tuple([names.get(name, name) for name in op.operands])
            self._current = op.with_operands(operands)

    def erase(self) -> None:
        """Remove the current op."""
        self.replace()

    def graph(self) -> Graph:
        """Return the new graph, or the old graph if nothing has changed."""
        assert self._is_complete, "the loop has not reached the last op"
        return self._graph.with_ops(self._ops)


_NO_OP = "no op is current, or it was erased"
