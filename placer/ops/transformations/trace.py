"""Traces an optax optimizer on the tree of its parameters: a dict from names to arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from placer.errors import PlacerError
from placer.ops.transformations.config import RATE, Make, name_of, takes_rate
from placer.ops.transformations.equations import Equations, inline_calls
from placer.ops.transformations.state_tree import StateLeaf, StateTree, tree_of
from placer.place.types import TensorType

Types = Mapping[str, TensorType]
"""The types of the parameters by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """An optimizer for a tree of parameters, as equations.

    Attributes:
        names: the names of the parameters, in the order of the inputs.
        types: their types by name.
        leaves: the leaves of the state.
        init: has the parameters as inputs, and the leaves as results.
        update: has the gradients, the leaves, the parameters and the learning rate as
            inputs, and the new parameters and the new leaves as results.
        averaged: has the leaves and the parameters as inputs, and the values for
            evaluations as results; None without a function for them.
        clip: the bound of `clip_by_global_norm` that is not among the equations.
    """

    names: tuple[str, ...]
    types: Types
    leaves: tuple[StateLeaf, ...]
    init: Equations
    update: Equations
    averaged: Equations | None
    clip: float | None = None

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a parameter."""
        return self.types[self.names[number]].sizes(0)

    def inputs_of(self, equations: Equations) -> Inputs:
        """Return the inputs of `update` or `averaged` by their meaning."""
        count, size = len(self.names), len(self.leaves)
        inputs = equations.inputs
        if equations is self.update:
            gradients, inputs = inputs[:count], inputs[count:]
        else:
            gradients = ()
        leaves, values = inputs[:size], inputs[size : size + count]
        return Inputs(gradients, leaves, values, tuple(inputs[size + count :]))


@dataclass(frozen=True, slots=True)
class Inputs:
    """The variables of inputs: one per parameter, one per leaf, and the learning rate."""

    gradients: Sequence[Any]
    leaves: Sequence[Any]
    values: Sequence[Any]
    rate: Sequence[Any]


def trace(
    make: Make, types: Types, averaged: Callable[..., Any] | None, wide: bool
) -> Traced:
    """Trace an optimizer; the arguments are those of `describe`."""
    return _trace(make, tuple(types.items()), averaged, wide)


def trace_again(
    make: Make, types: Types, averaged: Callable[..., Any] | None, wide: bool
) -> Traced:
    """Like `trace`, but always call the functions."""
    return _trace.__wrapped__(make, tuple(types.items()), averaged, wide)


@lru_cache(maxsize=16)
def _trace(
    make: Make,
    types: tuple[tuple[str, TensorType], ...],
    averaged: Callable[..., Any] | None,
    wide: bool,
) -> Traced:
    with jax.enable_x64(wide):
        return _Tracer(make, dict(types)).trace(averaged)


class _Tracer:
    def __init__(self, make: Make, types: Types) -> None:
        self._make = make
        self._types = types
        self._takes_rate = takes_rate(make)
        self._params = {
            name: jax.ShapeDtypeStruct(kind.shape, kind.dtype)
            for name, kind in types.items()
        }
        # As a Python number, the learning rate does not change the dtype of an update.
        self._rate = jax.ShapeDtypeStruct(
            (), jax.dtypes.canonicalize_dtype("float64"), weak_type=True
        )

    def trace(self, averaged: Callable[..., Any] | None) -> Traced:
        init, tree, structs = self._trace_init()
        update, new = self._trace_update(tree, structs)
        if any(
            a.weak_type and not b.weak_type for a, b in zip(structs, new, strict=True)
        ):
            # After the first update, such a leaf has the dtype of an array.
            pairs = zip(structs, new, strict=True)
            structs = [_with_weak(a, a.weak_type and b.weak_type) for a, b in pairs]
            update, _ = self._trace_update(tree, structs)
        return Traced(
            tuple(self._types),
            self._types,
            tree.leaves(structs, self._types),
            init,
            update,
            None if averaged is None else self._trace_averaged(averaged, tree, structs),
        )

    def _trace_init(self) -> tuple[Equations, StateTree, list[Any]]:
        trees: list[StateTree] = []

        def init(values: Sequence[Any], rate: Any) -> Any:
            state = self._transformation(rate).init(self._params_of(values))
            trees.append(tree_of(state, self._name))
            return trees[-1].unpack(state)

        closed = jax.make_jaxpr(init)(list(self._params.values()), self._rate)
        self._check_effects(closed, "init")
        equations = inline_calls(closed)
        rate = equations.inputs[-1]
        part = equations.part(equations.results)
        if any(rate in eqn.invars for eqn in part.eqns) or rate in part.results:
            raise PlacerError(
                f"the first state of '{self._name}' depends on the learning rate, which"
                " changes during training",
                hint="do not wrap the optimizer in optax.inject_hyperparams: placer passes"
                " the learning rate of each step",
            )
        part = Equations(
            part.inputs[:-1], part.results, part.eqns, part.consts, part.branches
        )
        return part, trees[-1], [_struct(aval) for aval in closed.out_avals]

    def _trace_update(
        self, tree: StateTree, structs: Sequence[Any]
    ) -> tuple[Equations, list[Any]]:
        def update(gradients: Any, leaves: Any, values: Any, rate: Any) -> Any:
            params = self._params_of(values)
            transformation = self._transformation(rate)
            updates, state = self._call_update(
                transformation, self._params_of(gradients), tree.pack(leaves), params
            )
            return self._apply(params, updates), tree.unpack(state)

        values = list(self._params.values())
        closed = jax.make_jaxpr(update)(values, list(structs), values, self._rate)
        self._check_effects(closed, "update")
        equations = inline_calls(closed)
        new = [_struct(aval) for aval in closed.out_avals[len(values) :]]
        tree.check_types(structs, new)
        part = equations.part(equations.results)
        rate = equations.inputs[-1]
        is_used = any(rate in eqn.invars for eqn in part.eqns) or rate in part.results
        if self._takes_rate and not is_used:
            raise PlacerError(
                f"'{self._name}' takes {RATE}, but its update does not use it",
                hint=f"pass {RATE} to the optimizer, or remove the parameter",
            )
        return part, new

    def _trace_averaged(
        self, averaged: Callable[..., Any], tree: StateTree, structs: Sequence[Any]
    ) -> Equations:
        name = name_of(averaged)

        def of_state(leaves: Any, values: Any) -> Any:
            result = averaged(tree.pack(leaves), self._params_of(values))
            return self._check_averages(result, f"'{name}' returns")

        closed = jax.make_jaxpr(of_state)(list(structs), list(self._params.values()))
        self._check_effects(closed, name)
        equations = inline_calls(closed)
        return equations.part(equations.results)

    @property
    def _name(self) -> str:
        return name_of(self._make)

    def _transformation(self, rate: Any) -> Any:
        made = self._make(**{RATE: rate}) if self._takes_rate else self._make()
        if not all(callable(getattr(made, each, None)) for each in ("init", "update")):
            raise PlacerError(
                f"'{self._name}' returns {type(made).__name__}, not an optax"
                " GradientTransformation",
                hint="end the function with a return of an optimizer, such as"
                " optax.adam(1e-3)",
            )
        return made

    def _call_update(
        self, transformation: Any, gradients: Any, state: Any, params: Any
    ) -> Any:
        try:
            return transformation.update(gradients, state, params)
        except TypeError as error:
            missing = re.search(r"missing .* keyword-only arguments?: (.+)", str(error))
            if missing is None:
                raise
            raise PlacerError(
                f"the update of '{self._name}' needs {missing[1]}, but placer passes only"
                " gradients and parameters",
                hint="use an optimizer that needs only the gradients: not one with a line"
                " search, such as lbfgs, or one that reads the loss, such as polyak_sgd",
            ) from error

    def _apply(self, params: Any, updates: Any) -> list[Any]:
        """Return the new parameters, as `optax.apply_updates`."""
        if not isinstance(updates, Mapping) or updates.keys() != params.keys():
            raise PlacerError(
                f"the update of '{self._name}' returns other parameters than it receives",
                hint="return one update for each gradient, with the same keys",
            )
        new = []
        for name, old in params.items():
            step = updates[name]
            if not jax.tree.leaves(step):  # None, or a MaskedNode
                new.append(old)
                continue
            if jnp.shape(step) != old.shape:
                raise PlacerError(
                    f"'{self._name}' returns an update of {name} with shape"
                    f" {list(jnp.shape(step))}, but the parameter has {list(old.shape)}",
                    hint="return updates with the shapes of the gradients",
                )
            new.append(jnp.asarray(old + step).astype(old.dtype))
        return new

    def _check_averages(self, tree: Any, what: str) -> list[Any]:
        if not isinstance(tree, Mapping) or tree.keys() != self._params.keys():
            raise PlacerError(
                f"{what} other parameters than it receives",
                hint="return a dict with the keys of the parameters",
            )
        for name, kind in self._params.items():
            shape, dtype = jnp.shape(tree[name]), jnp.result_type(tree[name])
            if (shape, dtype) != (kind.shape, kind.dtype):
                raise PlacerError(
                    f"{what} {dtype}{list(shape)} for {name}, but the parameter is"
                    f" {kind.dtype}{list(kind.shape)}",
                    hint="return values with the dtypes and shapes of the parameters",
                )
        return [jnp.asarray(tree[name]) for name in self._params]

    def _check_effects(self, closed: Any, function: str) -> None:
        if closed.effects:
            effects = ", ".join(
                sorted({type(each).__name__ for each in closed.effects})
            )
            raise PlacerError(
                f"{function} of '{self._name}' has an effect ({effects})",
                hint="an optimizer only computes: remove prints and callbacks",
            )

    def _params_of(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._types, values, strict=True))


def _with_weak(struct: Any, weak: bool) -> Any:
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, weak_type=weak)


def with_shapes(types: Types, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the types with other shapes of some parameters."""
    return {
        name: TensorType(kind.dtype, shapes.get(name, kind.shape))
        for name, kind in types.items()
    }


def _struct(aval: Any) -> Any:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
