"""Kinds of a spec that are several ops of the graph.

The graph holds the ops that a composite is put together from, each with a declaration
of its own, so that no pass knows of composites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    LayerParameter,
    Operand,
    Types,
)
from placer.types import TensorType


@dataclass(frozen=True, slots=True)
class Part:
    """One op of a composite: its kind, its operands' names, what each result adds to
    the composite's name (nothing for the one that others use), its attributes."""

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...] = ("",)
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """A composite as it is written: its name, operands, their types, attributes, and
    the seed of the spec. The operands are followed by the parameters it makes."""

    name: str
    operands: Sequence[str]
    types: Types
    attrs: Attrs
    seed: int


@dataclass(frozen=True, slots=True)
class Composite:
    """All that a front end knows of a composite kind.

    `infer` gives the type of the result, as an op's declaration does, and raises
    OpError; `parameters` what it makes; `parts` the ops, in program order.
    """

    kind: str
    doc: str
    operands: tuple[Operand, ...]
    infer: Callable[[Types, Attrs], tuple[TensorType, ...]]
    parts: Callable[[Written], Iterator[Part]]
    attrs: tuple[Attr, ...] = ()
    parameters: Callable[[Types, Attrs], tuple[LayerParameter, ...]] | None = None
    formula: str = ""
    source: str = ""
    cases: tuple[Case, ...] = ()
    example: str = ""


def stream(seed: int, name: str) -> int:
    """The number of an op's stream of random bits: 63 bits of a hash of the spec's seed
    and the op's name."""
    digest = sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
