"""What an op declares about itself, importable without JAX.

The compiler knows an op only through its `Declaration`: types, batch rule, what its
backward keeps, and cost. The JAX function of the same name stands in
a module `…_jax` beside it; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from placer.config.metrics import Final
from placer.types import TensorType

Attrs = Mapping[str, Any]
Types = Sequence[TensorType]
Rule = Literal["rows", "reduce", "whole"]


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute: its name in a spec, its type, default and meaning.

    `type` is a Python type or tuple of types as msgspec reads them; `build` attributes
    shape the parameters of a layer and do not reach the graph; `known` ones the
    compiler alone needs, the function does not take them.
    """

    name: str
    type: Any
    doc: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    build: bool = False
    known: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand. `variadic` takes all that follow; `parameter` ones a layer makes."""

    name: str
    doc: str = ""
    optional: bool = False
    variadic: bool = False
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class LayerParameter:
    """A parameter that a layer op makes: `h1.w` for operand `w` of op `h1`.

    A `state` is changed by the step itself, as running statistics are; no optimizer
    takes it.
    """

    operand: str
    type: TensorType
    init: Any
    state: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One use of an op: operand types as text and the attributes that are written.

    The op reference shows what the declaration answers for it.
    """

    operands: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)


def unbounded(types: Types, attrs: Attrs) -> Mapping[int, int]:
    """What `indexes` is for an op that takes any value."""
    return {}


def never(types: Types, attrs: Attrs) -> bool:
    """What `counts` is for an op whose function never takes `count`."""
    return False


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that the compiler knows of an op kind.

    Functions take the operand types (absent optional operands left out) and the
    attributes with defaults filled in.

    - `infer(types, attrs)`: the result types; raises OpError.
    - `results`: their names; with `variadic` the one name there is stands for as many
      as `infer` gives.
    - `batch(types, attrs)`: the batch rule (design 4): `rows`, `reduce` or `whole`.
      Asked only when an operand has rows. Of a `rows` op, a result without rows is a
      sum over them.
    - `linear`: groups of operand indices in which the op is jointly linear, the others
      held fixed: a partial value (P) passes through such a group.
    - `saves(types, attrs)`: indices of the operands that backward needs.
    - `residuals(types, attrs)`: types of what backward needs beside those operands.
    - `flops(types, attrs)`, `grad_flops(types, attrs, wrt)`: floating-point operations
      of forward and of backward for the operands `wrt`, the types free of `batch`.
      One multiplication and one addition are two, as XLA counts; an elementwise
      operation is one per element, exp and tanh too.
    - `counts(types, attrs)`: whether the function takes `count`, the number of rows of
      the global batch, because it divides by it or builds that many.
    - `parameters(types, attrs)`: what a layer makes, from its non-parameter operands.
    - `roles(types)`: the names of the operands that are given, where optional ones
      stand before others; without it those left out are the last.
    - `indexes(types, attrs)`: for operands that number the parts of something, by their
      index, how many parts there are: each value must be in [0, that). Only where one
      outside is a mistake, and not where the op gives it a meaning of its own.
    - `constant`: indices of the operands that no gradient flows to.
    - `final`: of a metric, how the number that is told is made of its value, a
      statistic (`placer.config.metrics`). A metric is recorded, never computed with.
    - `inserted`: the compiler puts it in; a spec does not name it.
    - `formula`, `source`, `cases`, `example`: for the op reference.
    """

    kind: str
    doc: str
    operands: tuple[Operand, ...]
    infer: Callable[[Types, Attrs], tuple[TensorType, ...]]
    batch: Callable[[Types, Attrs], Rule]
    flops: Callable[[Types, Attrs], int]
    grad_flops: Callable[[Types, Attrs, Sequence[int]], int]
    attrs: tuple[Attr, ...] = ()
    results: tuple[str, ...] = ("out",)
    variadic: bool = False
    linear: Callable[[Types, Attrs], tuple[tuple[int, ...], ...]] = field(
        default=lambda types, attrs: ()
    )
    saves: Callable[[Types, Attrs], tuple[int, ...]] = field(
        default=lambda types, attrs: ()
    )
    residuals: Callable[[Types, Attrs], tuple[TensorType, ...]] = field(
        default=lambda types, attrs: ()
    )
    counts: Callable[[Types, Attrs], bool] = field(default=never)
    parameters: Callable[[Types, Attrs], tuple[LayerParameter, ...]] | None = None
    roles: Callable[[Types], tuple[str, ...]] | None = None
    indexes: Callable[[Types, Attrs], Mapping[int, int]] = field(default=unbounded)
    constant: tuple[int, ...] = ()
    differentiable: bool = True
    final: Final | None = None
    inserted: bool = False
    formula: str = ""
    source: str = ""
    cases: tuple[Case, ...] = ()
    example: str = ""

    def named(self, count: int) -> tuple[str, ...]:
        """The names of `count` results: those declared, or `out0`, `out1`, …"""
        if self.variadic:
            (name,) = self.results
            return tuple(f"{name}{i}" for i in range(count))
        return self.results[:count]
