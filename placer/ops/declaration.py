"""Declarations of ops, importable without JAX.

The compiler knows an op only through its `Declaration`: result types, batch rule,
residuals and cost. The JAX function of the same name is in the module `…_jax` next to
the declaring one. A test checks that the two agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeVar

from placer.errors import OpError
from placer.ops.operand import Operand, Types, check_layer, check_operands
from placer.place.types import TensorType
from placer.plan.settings.training.initializers import Init
from placer.plan.settings.training.metrics import Finalizer

Attrs = Mapping[str, Any]
BatchRule = Literal["rows", "reduce", "whole"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute of an op: its name in a spec, type, default and meaning.

    `type` is a Python type as msgspec understands it. `for_parameters` attributes shape
    the parameters of a layer and do not reach the graph; cases do not have them, so a
    required one says which value the op reference shows, `example`. `compiler_only`
    attributes are not passed to the op's function. `is_function` attributes name a
    function of the user's, as MODULE:FUNCTION.
    """

    name: str
    type: Any
    doc: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    for_parameters: bool = False
    compiler_only: bool = False
    example: Any = None
    is_function: bool = False


def required(name: str, type_: Any, doc: str, **fields: Any) -> Attr:
    """Return an attribute that every op of the kind must have."""
    return Attr(name, type_, doc, required=True, **fields)


def flag(
    name: str, doc: str, *, default: bool = False, for_parameters: bool = False
) -> Attr:
    """Return an attribute of type bool."""
    return Attr(name, bool, doc, default, for_parameters=for_parameters)


def choice(name: str, doc: str, choices: tuple[str, ...]) -> Attr:
    """Return an attribute that is one of `choices`, by default the first."""
    return Attr(name, str, doc, choices[0], choices=choices)


def layer_size(name: str, type_: Any, doc: str, example: Any) -> Attr:
    """Return a required attribute that shapes the parameters of a layer."""
    return Attr(name, type_, doc, required=True, for_parameters=True, example=example)


def float_dtype(doc: str, *, for_parameters: bool = False) -> Attr:
    """Return the attribute `dtype`, a float dtype, by default float32."""
    choices = ("float16", "bfloat16", "float32", "float64")
    return Attr("dtype", str, doc, "float32", False, choices, for_parameters)


@dataclass(frozen=True, slots=True)
class LayerParameter:
    """A parameter that a layer creates: `h1.w` for operand `w` of op `h1`.

    The step itself updates a `state`, such as a running mean. No optimizer does.
    A parameter with a row for each key has the settings `sparse` of its table
    (`placer.plan.settings.sparse.sparse_keys`), and the names of the `inputs` that it needs beside keys;
    if `rows` is given, random values are scaled as those
    of a dense table of so many rows.
    """

    operand: str
    type: TensorType
    init: Init
    state: bool = False
    sparse: Mapping[str, Any] | None = None
    rows: int | None = None
    inputs: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """An example for the op reference: operand types as text, and written attributes.

    The op reference shows what the declaration returns for it, and writes the first
    case of an op as a line of a spec, or of the graph.
    """

    operands: tuple[str, ...]
    attrs: Attrs


def case(operands: str = "", **attrs: Any) -> Case:
    """Return an example: operand types, separated by commas, and written attributes."""
    return Case(tuple(re.findall(r"\w+\[.*?]", operands)), attrs)


def first_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """`Declaration.result_types` of an op with a result of the first operand's type."""
    return (types[0],)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a spec and the op reference know about an op kind or a composite.

    The callables take the operand types, without absent optional operands, and the
    attributes, with defaults. An OpError that they raise is a predicate, such as `needs
    rows`; `infer` and `parameters` make the kind its subject.

    - `result_types(types, attrs)`: the result types, given operands of the number and
      dtypes that `operands` declares; by default the type of the first operand.
      Everyone else calls `infer`.
    - `creates(types, attrs)`: the parameters that a layer creates, given the operands
      that are not parameters. Everyone else calls `parameters`.
    - `operand_names(types)`: the names of the operands that are present. Needed only if
      an optional operand precedes others; without it, absent operands are the last.
    - `formula`, `source`, `cases`: for the op reference.
    """

    kind: str
    doc: str
    operands: tuple[Operand, ...]
    result_types: Callable[[Types, Attrs], tuple[TensorType, ...]] = first_type
    _: KW_ONLY
    attrs: tuple[Attr, ...] = ()
    creates: Callable[[Types, Attrs], tuple[LayerParameter, ...]] | None = None
    operand_names: Callable[[Types], tuple[str, ...]] | None = None
    formula: str = ""
    source: str = ""
    cases: tuple[Case, ...] = ()

    @property
    def written_attrs(self) -> tuple[Attr, ...]:
        """The attributes that a spec may write: those that the compiler does not."""
        return tuple(attr for attr in self.attrs if not attr.compiler_only)

    def infer(self, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        """Return the result types; raise OpError for a wrong operand or attribute."""
        return self._call(self.result_types, check_operands, types, attrs)

    def parameters(self, types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
        """Return what a layer creates; raise OpError for a wrong operand or attribute.

        `types` are those of the operands that are not parameters.
        """
        assert self.creates is not None
        return self._call(self.creates, check_layer, types, attrs)

    def _call(
        self,
        function: Callable[[Types, Attrs], Result],
        check: Callable[[Sequence[Operand], Types], None],
        types: Types,
        attrs: Attrs,
    ) -> Result:
        """Check the operands and call a function of the declaration."""
        try:
            if self.operand_names is None:
                check(self.operands, types)
            return function(types, attrs)
        except OpError as error:
            raise error.of(self.kind) from None


@dataclass(frozen=True, slots=True)
class IndexBound:
    """The valid values of an index: 0 to `size` - 1, and `padding`, which stands for
    none.

    `scores` is for labels: the operand with the scores that they are compared with, or
    that the op computes them with.
    """

    size: int
    padding: int | None = None
    scores: int | None = None


def takes_no_count(types: Types, attrs: Attrs) -> bool:
    """`Declaration.takes_count` of an op whose function has no argument `count`."""
    return False


@dataclass(frozen=True, slots=True)
class Declaration(Signature):
    """Everything that the compiler knows about an op kind, with its `Signature`.

    - `results`: the names of the results. If `variadic`, the only name stands for as
      many results as `infer` returns.
    - `batch_rule(types, attrs)`: `rows`, the default, `reduce` or `whole`. Called only
      if an operand has rows. If a `rows` op has a result without rows, that result is a
      sum over rows.
    - `linear(types, attrs)`: groups of operand indices in which the op is jointly
      linear while the other operands are constant. A partial value (P) passes through a
      group.
    - `saves(types, attrs)`: indices of the operands that the backward needs.
    - `residuals(types, attrs)`: types of what the backward needs besides those
      operands.
    - `flops(types, attrs)`, `grad_flops(types, attrs, wrt)`: floating-point operations
      of the forward, and of the backward for the operands `wrt`; by default 0. The
      types are free of `batch`. As in XLA's cost analysis, a multiplication and an
      addition are two operations, and an elementwise function such as exp or tanh is
      one per element.
    - `takes_count(types, attrs)`: whether the function has an argument `count`, the
      number of rows of the global batch, because it divides by it or builds that many.
    - `own_part`: whether each node computes from what it has itself, a part of a sum or a
      replica, its own part of another sum (`P`), or a value of its own (`R`). The function
      has an argument `share`, which part of the rows of the global batch the node has in
      a step; 1 for a value of its own from a replica.
    - `index_bounds(types, attrs)`: for operands that are indices or labels, by operand
      index, their valid values. Only for operands where another value is a mistake, not
      where the op defines its meaning.
    - `constant_operands(types, attrs)`: indices of the operands that no gradient flows
      to.
    - `finalizer`: for a metric, how the reported number is computed from the op's
      result, a statistic (`placer.plan.settings.training.metrics`). No other op uses the result of a
      metric.
    - `inserted`: only the compiler inserts the op; a spec cannot name it.
    """

    batch_rule: Callable[[Types, Attrs], BatchRule] = lambda types, attrs: "rows"
    flops: Callable[[Types, Attrs], int] = lambda types, attrs: 0
    grad_flops: Callable[[Types, Attrs, Sequence[int]], int] = (
        lambda types, attrs, wrt: 0
    )
    _: KW_ONLY
    results: tuple[str, ...] = ("out",)
    variadic: bool = False
    linear: Callable[[Types, Attrs], tuple[tuple[int, ...], ...]] = (
        lambda types, attrs: ()
    )
    saves: Callable[[Types, Attrs], tuple[int, ...]] = lambda types, attrs: ()
    residuals: Callable[[Types, Attrs], tuple[TensorType, ...]] = lambda types, attrs: ()
    takes_count: Callable[[Types, Attrs], bool] = takes_no_count
    own_part: Literal["P", "R"] | None = None
    index_bounds: Callable[[Types, Attrs], Mapping[int, IndexBound]] = (
        lambda types, attrs: {}
    )
    constant_operands: Callable[[Types, Attrs], tuple[int, ...]] = lambda types, attrs: ()
    differentiable: bool = True
    finalizer: Finalizer | None = None
    inserted: bool = False

    @property
    def calls_user_code(self) -> bool:
        """Whether the op calls a function of the user's, which has to be traced."""
        return any(attr.is_function for attr in self.attrs)

    def result_names(self, count: int) -> tuple[str, ...]:
        """Return the names of `count` results: those declared, or `out0`, `out1`, …"""
        if self.variadic:
            (name,) = self.results
            return tuple(f"{name}{i}" for i in range(count))
        return self.results[:count]
