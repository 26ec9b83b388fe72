"""The entry of an op in a spec, and the report of errors from the op's declaration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.compiler.frontend.yaml.problems import Problems, inner_span, nodes_on
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode
from placer.errors import OpError, Span
from placer.place import Place
from placer.place.types import TensorType

Operands = Sequence[tuple[ScalarNode, TensorType]]
"""The operands in the key `in` of an op, with their types."""


@dataclass(frozen=True, slots=True)
class OpEntry:
    """An op of a spec: its mapping, name, kind, and the settings of its scopes.

    Attributes:
        span: The position of the op: of its name.
        remat: The number of the enclosing scope with `remat`, if any.
    """

    node: MappingNode
    name: str
    kind: str
    span: Span
    place: Place | None
    remat: int | None

    @property
    def where(self) -> str:
        """The op as messages call it."""
        return f"op '{self.name}' ({self.kind})"


def report_op_error(
    error: OpError, entry: OpEntry, operands: Operands, problems: Problems
) -> None:
    """Report an error of a declaration, at the operand or attribute at fault."""
    entries = entry.node.entries
    at = entries["op"]
    if error.attr is not None:
        at = nodes_on(error.keys, entries.get(error.attr, at))[-1]
    elif error.operand is None:
        at = entries.get("in", at)
    elif error.operand < len(operands):
        at = operands[error.operand][0]
    else:
        at = entries.get("params", at)
    op = f"op '{entry.name}'" if error.kind == entry.kind else entry.where
    problems.add(f"{op}: {error.message}", inner_span(at), error.hint)
