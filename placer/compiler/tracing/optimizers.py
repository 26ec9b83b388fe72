"""Traces the optax optimizers of a spec at compile time.

The passes need to know which parameters an optimizer can update by blocks. An optimizer is
traced twice: on the whole parameters before the passes, and on blocks of the shapes that
the passes have chosen. If its equations on a block differ, the parameter is kept whole, and
the passes run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from msgspec import structs

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.graph.optax_groups import optax_optimizers
from placer.compiler.passes.gradients.differentiate import trained_parameters
from placer.compiler.tracing.user_functions import describe_raised, load_function
from placer.errors import PlacerError, SpecError, missing_package_hint
from placer.ops.transformations.config import with_config
from placer.ops.transformations.cut import differences_on_blocks
from placer.ops.transformations.describe import describe
from placer.place.types import TensorType
from placer.plan.modules import Modules, modules_in
from placer.plan.plan import Table
from placer.plan.settings.training.transformations import Transformation, shape_on_block

_Shapes = Mapping[str, set[tuple[int, ...]]]
"""The shapes of the blocks of each cut parameter."""


def describe_optimizers(model: Model) -> Model:
    """Return the model with the facts of every optax optimizer.

    Raises SpecError at an optimizer that placer cannot run.
    """
    with _functions(model) as functions:
        described = {}
        for op in optax_optimizers(model.graph):
            with functions.errors_at(op):
                described[op] = op.with_attrs(transformation=functions.describe(op))
    return _with_ops(model, described)


def keep_whole(model: Model, tables: Mapping[str, Sequence[Table]]) -> Model:
    """Keep more parameters whole if their update by blocks differs from the whole update.

    Args:
        model: The model with the facts of its optimizers.
        tables: The tables of each node, with the blocks.

    Returns:
        A new model, or the same one if all blocks can be updated.
    """
    kept = {}
    with _functions(model) as functions:
        for op in optax_optimizers(model.graph):
            shapes = _cut_shapes(model.graph, op, tables)
            with functions.errors_at(op):
                found = functions.differences(op, shapes)
            if found:
                transformation = op.attrs["transformation"]
                whole = {**transformation.whole, **found}
                kept[op] = op.with_attrs(
                    transformation=structs.replace(transformation, whole=whole)
                )
    return _with_ops(model, kept)


def _with_ops(model: Model, replaced: Mapping[Op, Op]) -> Model:
    if not replaced:
        return model
    graph = model.graph
    return replace(
        model, graph=graph.with_ops(tuple(replaced.get(op, op) for op in graph.ops))
    )


def _cut_shapes(
    graph: Graph, optimizer: Op, tables: Mapping[str, Sequence[Table]]
) -> _Shapes:
    """Return the shapes of the blocks of an optimizer's cut parameters."""
    number = str(optimizer.attrs["group"])
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for of_node in tables.values():
        for table in of_node:
            for block in table.blocks if table.transformation == number else ():
                whole = graph.tensor_type(block.parameter)
                if 0 < block.numel < whole.numel():
                    shape = shape_on_block(whole.sizes(1), block.start, block.stop)
                    found[block.parameter].add(shape)
    return found


@contextmanager
def _functions(model: Model) -> Iterator[_Functions]:
    is_wide = model.settings.precision == "float64"
    with jax.enable_x64(is_wide), modules_in(model.folder, built=False) as modules:
        yield _Functions(model.graph, modules, is_wide)


_NUMBERS = (
    "while placer traces the function, learning_rate and arrays have no values for 'if' or"
    " float(): give a schedule of optax its numbers, and leave learning_rate out of the"
    " function and the optimizer"
)


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of the optax optimizers of a spec."""

    graph: Graph
    modules: Modules
    is_wide: bool
    loaded: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def errors_at(self, op: Op) -> Iterator[None]:
        """Raise errors as SpecError at an optimizer."""
        fn = op.attrs["fn"]
        try:
            yield
        except PlacerError as error:
            if error.span is not None:
                raise
            message = f"optimizer {fn}: {error.message}"
            raise SpecError(message, span=op.source, hint=error.hint) from error
        except (Exception, SystemExit) as error:
            message = f"optimizer {describe_raised(fn, error, self.modules)}"
            hint = missing_package_hint(error)
            if isinstance(error, jax.errors.ConcretizationTypeError):
                hint = _NUMBERS
            raise SpecError(message, span=op.source, hint=hint) from error

    def describe(self, op: Op) -> Transformation:
        has_rate = "learning_rate" in op.attrs
        make, types, keywords = self._arguments(op)
        transformation = describe(
            make,
            types,
            fn=op.attrs["fn"],
            config=op.attrs.get("config", ""),
            eval_params=op.attrs.get("eval_params", ""),
            **keywords,
        )
        if transformation.takes_rate and not has_rate:
            raise PlacerError(
                "the function takes learning_rate, but the optimizer sets none",
                hint="write learning_rate: 0.001, or a schedule",
            )
        if has_rate and not transformation.takes_rate:
            name = op.attrs["fn"].partition(":")[2]
            raise PlacerError(
                "'learning_rate' has no effect: the function does not take it",
                hint=f"write def {name}(learning_rate): …, or leave learning_rate out",
            )
        return transformation

    def differences(self, op: Op, shapes: _Shapes) -> dict[str, str]:
        """Return why parameters cannot be updated by blocks of these shapes."""
        make, types, keywords = self._arguments(op)
        found: dict[str, str] = {}
        for blocks in _combinations(shapes):
            found |= differences_on_blocks(make, types, blocks, **keywords)
        return found

    def _arguments(self, op: Op) -> tuple[Any, dict[str, TensorType], dict[str, Any]]:
        group = op.attrs["group"]
        types = {
            each.name: self.graph.tensor_type(each.name)
            for each in trained_parameters(self.graph)
            if each.attrs["group"] == group
        }
        averaged = op.attrs.get("eval_params")
        keywords = {"averaged": averaged and self._load(averaged), "wide": self.is_wide}
        make = with_config(self._load(op.attrs["fn"]), op.attrs.get("config", ""))
        return make, types, keywords

    def _load(self, text: str) -> Any:
        return load_function(text, self.modules, self.loaded)


def _combinations(shapes: _Shapes) -> Iterable[dict[str, tuple[int, ...]]]:
    """Return shapes of blocks such that each shape of each parameter occurs."""
    count = max(map(len, shapes.values()), default=0)
    in_order = {name: sorted(each) for name, each in shapes.items()}
    for i in range(count):
        yield {name: each[min(i, len(each) - 1)] for name, each in in_order.items()}
