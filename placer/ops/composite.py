"""Composites: kinds of a spec that become several ops of the graph.

The graph contains only the ops that a composite expands to. Each of them has its own
declaration, so passes do not need to know about composites.
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
    `types` are their types, and `seed` is the seed of the spec. `kept_states` has the names of
    state that keeps its initial values, by `trainable: false`.
    """

    name: str
    operands: Sequence[str]
    types: Types
    attrs: Attrs
    seed: int
    kept_states: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Composite(Signature):
    """A composite kind: a signature, and the ops of the graph.

    `expand(use)` yields them in program order.
    """

    expand: Callable[[CompositeUse], Iterator[Part]] = field(kw_only=True)


def derive_stream(seed: int, name: str) -> int:
    """Return the number of an op's random stream, in [0, 2⁶³).

    It is the first 63 bits of SHA-256 of the spec's seed and the op's name.
    """
    digest = sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
