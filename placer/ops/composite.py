"""Composites: op kinds of a spec that expand to several ops of the graph.

The graph contains only the expanded ops. Each has its own declaration, so passes need
not know composites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from placer.ops.declaration import Attrs, Signature
from placer.ops.operand import Types


@dataclass(frozen=True, slots=True)
class Part:
    """One op of an expanded composite.

    Attributes:
        operands: names of values.
        results: suffixes for the composite's name. The empty suffix marks the result
            for other ops.
    """

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...] = ("",)
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompositeUse:
    """One use of a composite in a spec.

    Attributes:
        operands: the names of the operands, then of the parameters.
        types: their types.
        seed: the seed of the spec.
        kept_states: the names of states that keep their initial values (`trainable:
            false`).
    """

    name: str
    operands: Sequence[str]
    types: Types
    attrs: Attrs
    seed: int
    kept_states: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Composite(Signature):
    """A composite kind; `expand(use)` yields its ops in program order."""

    expand: Callable[[CompositeUse], Iterator[Part]] = field(kw_only=True)


def derive_stream(seed: int, name: str) -> int:
    """Return the number of an op's random stream, in [0, 2⁶³).

    It is the first 63 bits of SHA-256 of the spec's seed and the op's name.
    """
    digest = sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
