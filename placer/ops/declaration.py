"""Declarations of ops, importable without JAX.

A `Declaration` is everything the compiler knows about an op: result types, batch rule,
residuals and cost. The JAX function of the same name is in a module next to the
declaring one, with the suffix `_jax`. A test checks that the two agree.
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
    """One attribute of an op.

    Attributes:
        type: a Python type that msgspec understands.
        for_parameters: the attribute only shapes the parameters of a layer, and is not
            in the graph.
        example: the value that the op reference shows for a required attribute
            `for_parameters`. Cases omit these attributes.
        compiler_only: the attribute is not passed to the op's function.
        is_function: the attribute names a function of the user as MODULE:FUNCTION.
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
    """Return an attribute without a default."""
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
    """Return the attribute `dtype`: a float dtype, by default float32."""
    choices = ("float16", "bfloat16", "float32", "float64")
    return Attr("dtype", str, doc, "float32", False, choices, for_parameters)


@dataclass(frozen=True, slots=True)
class LayerParameter:
    """A parameter that a layer creates, such as `h1.w` for operand `w` of op `h1`.

    Attributes:
        state: the step itself updates the value, and no optimizer does, as for a
            running mean.
        sparse: the settings of a table with a row per key
            (`placer.plan.settings.sparse.sparse_keys`).
        inputs: the names of the inputs that such a table needs besides its keys.
        rows: if given, random initial values are scaled as for a dense table with this
            many rows.
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
    """An example for the op reference: operand types as text, and attributes.

    The op reference shows the declaration's answers for it. The first case of an op is
    also shown as a line of a spec, or of the graph.
    """

    operands: tuple[str, ...]
    attrs: Attrs


def case(operands: str = "", **attrs: Any) -> Case:
    """Return an example, with operand types separated by commas."""
    return Case(tuple(re.findall(r"\w+\[.*?]", operands)), attrs)


def first_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """`Declaration.result_types` of an op whose result has the first operand's type."""
    return (types[0],)


@dataclass(frozen=True, slots=True)
class Signature:
    """The part of an op kind or a composite that specs and the op reference need.

    The callables take the types of the present operands, and the attributes with
    defaults. Their OpErrors are predicates, such as `needs rows`. `infer` and
    `parameters` add the kind as the subject.

    Attributes:
        result_types: `(types, attrs)` → the result types, for checked operands; by
            default the type of the first operand. Call `infer` instead.
        creates: `(types, attrs)` → the parameters of a layer, given the other operands.
            Call `parameters` instead.
        operand_names: `(types)` → the names of the present operands. Needed only if an
            optional operand precedes others.
        formula: for the op reference.
        source: for the op reference.
        cases: examples for the op reference.
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
        """The attributes that a spec may contain."""
        return tuple(attr for attr in self.attrs if not attr.compiler_only)

    def infer(self, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        """Return the result types; raise OpError for an invalid operand or attribute."""
        return self._call(self.result_types, check_operands, types, attrs)

    def parameters(self, types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
        """Return the parameters of a layer, given the types of its other operands.

        Raises OpError for an invalid operand or attribute.
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
        try:
            if self.operand_names is None:
                check(self.operands, types)
            return function(types, attrs)
        except OpError as error:
            raise error.of(self.kind) from None


@dataclass(frozen=True, slots=True)
class IndexBound:
    """The valid values of an index: 0 to `size` - 1, and `padding` for no row.

    Attributes:
        scores: for labels: the operand with the scores of the classes, or from which
            the op computes the scores.
    """

    size: int
    padding: int | None = None
    scores: int | None = None


def takes_no_count(types: Types, attrs: Attrs) -> bool:
    """`Declaration.takes_count` of an op whose function has no argument `count`."""
    return False


@dataclass(frozen=True, slots=True)
class Declaration(Signature):
    """Everything that the compiler knows about an op kind.

    Attributes:
        results: the names of the results. If `variadic`, the only name stands for all
            results.
        batch_rule: `(types, attrs)` → `rows` (the default), `reduce` or `whole`. Called
            only if an operand has rows. A result without rows of a `rows` op is a sum
            over rows.
        linear: `(types, attrs)` → groups of operands. The op is jointly linear in each
            group while the other operands are constant, so partial values (P) pass
            through.
        saves: `(types, attrs)` → indices of the operands that the backward needs.
        residuals: `(types, attrs)` → types of other values that the backward needs.
        flops: `(types, attrs)` → floating-point operations of the forward, by default
            0. The types have no `batch`. As in XLA's cost analysis, a multiplication
            and an addition count as two, and exp or tanh as one per element.
        grad_flops: `(types, attrs, wrt)` → operations of the backward for the operands
            `wrt`.
        takes_count: `(types, attrs)` → whether the function has an argument `count`,
            the number of rows of the global batch.
        own_part: each node applies the op to its own part of a sum or its own replica.
            `P`: the results add up; `R`: each node keeps its own result. The function
            has an argument `share`, the node's fraction of the global batch in a step,
            or 1 for a replica's own result.
        index_bounds: `(types, attrs)` → the valid values of operands that are indices
            or labels, by operand index. Only where another value is a mistake.
        constant_operands: `(types, attrs)` → indices of operands without a gradient.
        finalizer: for a metric: how its result, a statistic, becomes the reported
            number (`placer.plan.settings.training.metrics`). No other op uses the
            statistic.
        inserted: only the compiler inserts the op; a spec cannot name it.
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
        """Whether the op calls a function of the user, which must be traced."""
        return any(attr.is_function for attr in self.attrs)

    def result_names(self, count: int) -> tuple[str, ...]:
        """Return the names of `count` results: the declared ones, or `out0`, `out1`, …"""
        if self.variadic:
            (name,) = self.results
            return tuple(f"{name}{i}" for i in range(count))
        return self.results[:count]
