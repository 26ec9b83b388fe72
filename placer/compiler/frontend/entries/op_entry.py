"""The entry of an op in a spec, and the errors of the op's declaration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.compiler.frontend.yaml.problems import Problems, inner_span, nodes_on
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode
from placer.errors import OpError, Span
from placer.place import Place
from placer.place.types import TensorType

Operands = Sequence[tuple[ScalarNode, TensorType]]
"""The operands that an op has in `in`, with their types."""


@dataclass(frozen=True, slots=True)
class OpEntry:
    """The mapping of an op, its name and its kind, and what its scopes say.

    `span` is the position of the op in the graph, that of its name. `remat` is the
    number of the scope with `remat` around it.
    """

    node: MappingNode
    name: str
    kind: str
    span: Span
    place: Place | None
    remat: int | None

    @property
    def where(self) -> str:
        """The op as messages name it."""
        return f"op '{self.name}' ({self.kind})"


def report_op_error(
    error: OpError, entry: OpEntry, operands: Operands, problems: Problems
) -> None:
    """Report the error of a declaration, at the operand or attribute at fault."""
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
