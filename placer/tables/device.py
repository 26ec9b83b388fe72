"""A dense table on devices: blocks are JAX arrays, an update is one jitted call of
optax.

It has the methods of `placer.tables.dense.Table` that `Node` calls. JAX arrays are
never overwritten, so readers keep the values that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt
import optax

from placer.config import optimizers
from placer.tables.block import ParameterBlock, check_fits
from placer.tables.device_rules import apply_phase, direction_phase, one_phase_rule
from placer.tables.initial import initial_values

Arrays = tuple[jax.Array, ...]
Put = Callable[[Sequence[Any]], Arrays]


class DeviceTable:
    """The blocks of one optimizer on devices of one node, with their state and step
    count.

    A table is used by one thread at a time. Half floats are computed in float32 and
    rounded once per update, as in `placer.tables.dense.Table`.

    Args:
        name: the table's name, for messages.
        blocks: the blocks, in the order of all sequences below.
        rule: the optimizer rule, one of `placer.config.optimizers`.
        hyper: its hyperparameters; those left out have their defaults.
        dtype: the dtype of values, state and gradients: a float of 16, 32 or 64 bits.
        seed: the seed of the initial values.
        initializers: the initializer of each parameter, by its name.
        put: copies arrays to the table's devices, each array to every device.
    """

    def __init__(
        self,
        name: str,
        blocks: Sequence[ParameterBlock],
        rule: str,
        hyper: Mapping[str, float],
        *,
        dtype: str,
        seed: int,
        initializers: Mapping[str, initial_values.Initializer],
        put: Put,
    ) -> None:
        self.name = name
        self.blocks = tuple(blocks)
        self.block_of_gradient = {
            block.gradient: i for i, block in enumerate(self.blocks) if block.gradient
        }
        self.rule = rule
        self.dtype = np.dtype(dtype)
        self.step = 0
        self.hyper = optimizers.complete(rule, hyper)
        self._put = put
        self._directions: Arrays | None = None
        self._values = put(
            [b.initial_values(initializers, seed, dtype) for b in self.blocks]
        )
        decays = [block.decays for block in self.blocks]
        if optimizers.find(rule).is_two_phase:
            first_phase = direction_phase(rule, self.hyper, decays)
            second_phase = partial(apply_phase, rule, self.hyper)
            steps = [
                partial(_direction_step, first_phase),
                partial(_update_step, second_phase),
            ]
            transformations = [first_phase, second_phase(0.0)]
        else:
            rule_at = partial(one_phase_rule, rule, self.hyper, decays)
            steps, transformations = [partial(_update_step, rule_at)], [rule_at(0.0)]
        self._steps = [jax.jit(step, donate_argnums=1) for step in steps]
        self._states = [
            self._initial_state(transformation) for transformation in transformations
        ]

    def values(self) -> Arrays:
        """Return the values of the blocks, in their order, each of its block's
        shape."""
        return self._values

    def load(self, values: Sequence[npt.ArrayLike]) -> None:
        """Replace the values by `values`, one array per block.

        State and step count stay as they are. Raises RunError for arrays that do not
        fit the blocks.
        """
        arrays = check_fits(self.name, self.blocks, self.dtype, values, "value")
        self._values = self._put(arrays)

    def warm_up(self, sources: int = 1) -> None:
        """Compile an update by running one on zeros, whose results are dropped."""
        del sources  # gradients arrive as one sum
        # An update donates the state's memory, so what is restored must be a copy.
        saved = self._values, [jax.tree.map(jnp.copy, state) for state in self._states]
        zeros = [jnp.zeros_like(value) for value in self._values]
        if len(self._steps) == 1:
            self.update(zeros, learning_rate=0.0)
        else:
            self.compute_directions(zeros)
            self.apply_directions([0.0] * len(self.blocks), learning_rate=0.0)
        (self._values, self._states), self.step = saved, 0

    def update(
        self,
        gradients: Sequence[Any],
        *,
        learning_rate: float,
        scale: Any = None,
    ) -> None:
        """Apply one gradient per block, each multiplied by `scale`: one factor for all,
        or one per block. Raises RunError for gradients that do not fit the blocks."""
        self._update(0, self._check_gradients(gradients), scale, learning_rate)

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> Arrays:
        """Compute the update direction of each block: the first phase of a two-phase
        rule.

        `apply_directions` applies them. Errors are those of `update`.
        """
        checked = self._check_gradients(gradients)
        directions, self._states[0] = self._steps[0](
            self._values, self._states[0], checked, self._scale_per_block(scale)
        )
        self._directions = tuple(directions)
        return self._directions

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        """Apply the update directions, each by the trust ratio of its block's
        parameter: the second phase of a two-phase rule."""
        assert self._directions is not None, "compute_directions comes first"
        self._update(1, list(self._directions), tuple(ratios), learning_rate)
        self._directions = None

    def _update(
        self, phase: int, gradients: list[Any], scale: Any, rate: float
    ) -> None:
        values, self._states[phase] = self._steps[phase](
            self._values,
            self._states[phase],
            gradients,
            self._scale_per_block(scale),
            rate,
        )
        self._values = tuple(values)
        self.step += 1

    def _check_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        return check_fits(self.name, self.blocks, self.dtype, gradients, "gradient")

    def _scale_per_block(self, scale: Any) -> list[Any]:
        if isinstance(scale, list | tuple):
            return list(scale)
        return [1.0 if scale is None else scale] * len(self.blocks)

    def _initial_state(self, transformation: optax.GradientTransformation) -> Any:
        """Return the initial state of a transformation, on the devices."""
        leaves, structure = jax.tree.flatten(transformation.init(list(self._values)))
        return jax.tree.unflatten(structure, self._put(leaves))


def _update_step(
    rule_at: Callable[[Any], optax.GradientTransformation],
    values: Arrays,
    state: Any,
    gradients: list[jax.Array],
    scales: list[Any],
    rate: Any,
) -> tuple[list[jax.Array], Any]:
    """Return the values and the state after an update at this rate."""
    wide_values, changes = _widen(values), _scale(gradients, scales)
    changes, new = rule_at(jnp.asarray(rate, _compute_dtype(values[0]))).update(
        changes, _widen(state), wide_values
    )
    return _round_like(values, optax.apply_updates(wide_values, changes)), _round_like(
        state, new
    )


def _direction_step(
    rule: optax.GradientTransformation,
    values: Arrays,
    state: Any,
    gradients: list[jax.Array],
    scales: list[Any],
) -> tuple[list[jax.Array], Any]:
    """Return the update directions for these gradients, and the state after them."""
    directions, new = rule.update(
        _scale(gradients, scales), _widen(state), _widen(values)
    )
    return _round_like(values, directions), _round_like(state, new)


def _scale(gradients: list[jax.Array], scales: list[Any]) -> list[jax.Array]:
    widened = _widen(gradients)
    return [
        gradient * jnp.asarray(scale, gradient.dtype)
        for gradient, scale in zip(widened, scales, strict=True)
    ]


def _compute_dtype(array: jax.Array) -> Any:
    return jnp.float32 if array.dtype.itemsize == 2 else array.dtype


def _widen(tree: Any) -> Any:
    """Convert half floats of a tree to float32, and a tuple to a list."""

    def wide(leaf: jax.Array) -> jax.Array:
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(_compute_dtype(leaf)) if is_float else leaf

    return jax.tree.map(wide, list(tree) if type(tree) is tuple else tree)


def _round_like(before: Any, after: Any) -> Any:
    """Round the leaves of `after` to the dtypes of the leaves of `before`."""
    types = [leaf.dtype for leaf in jax.tree.leaves(before)]
    leaves, structure = jax.tree.flatten(after)
    rounded = [leaf.astype(dtype) for leaf, dtype in zip(leaves, types, strict=True)]
    return jax.tree.unflatten(structure, rounded)
