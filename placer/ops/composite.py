"""Composites: kinds of a spec that become several ops of the graph.

The graph contains only the ops that a composite expands to. Each of them has its own
declaration, so passes do not need to know about composites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from placer.ops.declaration import Attr, Attrs, Case, LayerParameter
from placer.ops.operand import Operand, Types, check_operands
from placer.types import TensorType


@dataclass(frozen=True, slots=True)
class Part:
    """One op that a composite expands to.

    `operands` are names of values. `results` are suffixes that are appended to the
    composite's name; the empty suffix marks the result that other ops use.
    """

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...] = ("",)
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompositeUse:
    """One use of a composite in a spec.

    `operands` are the names of its operands, followed by those of its parameters;
    `types` are their types, and `seed` is the seed of the spec.
    """

    name: str
    operands: Sequence[str]
    types: Types
    attrs: Attrs
    seed: int


@dataclass(frozen=True, slots=True)
class Composite:
    """Everything that a front end knows about a composite kind.

    - `result_types(types, attrs)`: the result types, as in `Declaration`.
    - `expand(use)`: yields the ops of the graph, in program order.
    - `parameters(types, attrs)`: the parameters that the composite creates.
    """

    kind: str
    doc: str
    operands: tuple[Operand, ...]
    result_types: Callable[[Types, Attrs], tuple[TensorType, ...]]
    expand: Callable[[CompositeUse], Iterator[Part]]
    attrs: tuple[Attr, ...] = ()
    parameters: Callable[[Types, Attrs], tuple[LayerParameter, ...]] | None = None
    formula: str = ""
    source: str = ""
    cases: tuple[Case, ...] = ()
    example: str = ""

    def infer(self, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        """Return the result types; raise OpError for a wrong operand or attribute."""
        check_operands(self.kind, self.operands, types)
        return self.result_types(types, attrs)


def derive_stream(seed: int, name: str) -> int:
    """Return the number of an op's random stream, in [0, 2⁶³).

    It is the first 63 bits of SHA-256 of the spec's seed and the op's name.
    """
    digest = sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
