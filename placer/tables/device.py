"""A dense table on devices: blocks as JAX arrays, each update one compiled call of optax.

It has the methods of `placer.tables.dense.Table` that programs call. Arrays are never
written over, so whoever has one keeps it.
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
from placer.tables.block import Block, fitting
from placer.tables.device_rules import direction, follower, one_stage
from placer.tables.initial import initial_values

Arrays = tuple[jax.Array, ...]
Put = Callable[[Sequence[Any]], Arrays]


class DeviceTable:
    """Blocks of one optimizer group on devices of one node, with their state and step
    count. `put` brings arrays to these devices, each device all of them.

    Used by one thread at a time. Halves are computed in float32 and rounded once an
    update, as in a table in memory.
    """

    def __init__(
        self,
        name: str,
        blocks: Sequence[Block],
        rule: str,
        hyper: Mapping[str, float],
        *,
        dtype: str,
        seed: int,
        inits: Mapping[str, initial_values.Init],
        put: Put,
    ) -> None:
        self.name = name
        self.blocks = tuple(blocks)
        self.takes = {
            block.gradient: i for i, block in enumerate(self.blocks) if block.gradient
        }
        self.rule = rule
        self.dtype = np.dtype(dtype)
        self.step = 0
        self.hyper = optimizers.complete(rule, hyper)
        self._put = put
        self._directions: Arrays | None = None
        self._values = put([b.initial(inits, seed, dtype) for b in self.blocks])
        decays = [block.decays for block in self.blocks]
        if optimizers.find(rule).direction:
            towards = direction(rule, self.hyper, decays)
            follow = partial(follower, rule, self.hyper)
            steps = [partial(_directed, towards), partial(_updated, follow)]
            begun = [towards, follow(0.0)]
        else:
            by = partial(one_stage, rule, self.hyper, decays)
            steps, begun = [partial(_updated, by)], [by(0.0)]
        self._steps = [jax.jit(step, donate_argnums=1) for step in steps]
        self._states = [self._begun(each) for each in begun]

    def values(self) -> Arrays:
        """The blocks' values, in their order."""
        return self._values

    def load(self, values: Sequence[npt.ArrayLike]) -> None:
        """Take these values, one array per block; state and step stay as they are.

        RunError where they do not fit.
        """
        arrays = fitting(self.name, self.blocks, self.dtype, values, "value")
        self._values = self._put(arrays)

    def warm(self, sources: int = 1) -> None:
        """Compile an update, and run one that nobody keeps."""
        del sources  # gradients come summed
        held = self._values, [jax.tree.map(jnp.copy, each) for each in self._states]
        zeros = [jnp.zeros_like(value) for value in self._values]
        if len(self._steps) == 1:
            self.update(zeros, learning_rate=0.0)
        else:
            self.direct(zeros)
            self.update_by([0.0] * len(self.blocks), learning_rate=0.0)
        (self._values, self._states), self.step = held, 0

    def update(
        self,
        gradients: Sequence[Any],
        *,
        learning_rate: float,
        scale: Any = None,
    ) -> None:
        """Apply one gradient per block, each multiplied by `scale`: one for all, or one
        per block. RunError for gradients that do not fit the blocks."""
        self._update(0, self._gradients(gradients), scale, learning_rate)

    def direct(self, gradients: Sequence[Any], *, scale: Any = None) -> Arrays:
        """The first stage of a rule with a direction: that of each block, for
        `update_by` to follow."""
        taken = self._gradients(gradients)
        directions, self._states[0] = self._steps[0](
            self._values, self._states[0], taken, self._scales(scale)
        )
        self._directions = tuple(directions)
        return self._directions

    def update_by(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        """The second stage: follow each block's direction by its trust ratio."""
        assert self._directions is not None, "direct comes first"
        self._update(1, list(self._directions), tuple(ratios), learning_rate)
        self._directions = None

    def _update(self, stage: int, taken: list[Any], scale: Any, rate: float) -> None:
        values, self._states[stage] = self._steps[stage](
            self._values, self._states[stage], taken, self._scales(scale), rate
        )
        self._values = tuple(values)
        self.step += 1

    def _gradients(self, gradients: Sequence[Any]) -> list[Any]:
        return fitting(self.name, self.blocks, self.dtype, gradients, "gradient")

    def _scales(self, scale: Any) -> list[Any]:
        if isinstance(scale, list | tuple):
            return list(scale)
        return [1.0 if scale is None else scale] * len(self.blocks)

    def _begun(self, transformation: optax.GradientTransformation) -> Any:
        """The state that a transformation begins with, on the devices."""
        leaves, structure = jax.tree.flatten(transformation.init(list(self._values)))
        return jax.tree.unflatten(structure, self._put(leaves))


def _updated(
    by: Callable[[Any], optax.GradientTransformation],
    values: Arrays,
    state: Any,
    gradients: list[jax.Array],
    scales: list[Any],
    rate: Any,
) -> tuple[list[jax.Array], Any]:
    """The values and the state after an update at this rate."""
    wide, changes = _wide(values), _scaled(gradients, scales)
    changes, new = by(jnp.asarray(rate, _real(values[0]))).update(
        changes, _wide(state), wide
    )
    return _as(values, optax.apply_updates(wide, changes)), _as(state, new)


def _directed(
    towards: optax.GradientTransformation,
    values: Arrays,
    state: Any,
    gradients: list[jax.Array],
    scales: list[Any],
) -> tuple[list[jax.Array], Any]:
    """The directions that gradients give, and the state after them."""
    found, new = towards.update(_scaled(gradients, scales), _wide(state), _wide(values))
    return _as(values, found), _as(state, new)


def _scaled(gradients: list[jax.Array], scales: list[Any]) -> list[jax.Array]:
    wide = _wide(gradients)
    return [g * jnp.asarray(by, g.dtype) for g, by in zip(wide, scales, strict=True)]


def _real(array: jax.Array) -> Any:
    return jnp.float32 if array.dtype.itemsize == 2 else array.dtype


def _wide(tree: Any) -> Any:
    """Halves as float32, in lists; the rest as it is."""

    def wide(leaf: jax.Array) -> jax.Array:
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(_real(leaf)) if is_float else leaf

    return jax.tree.map(wide, list(tree) if type(tree) is tuple else tree)


def _as(before: Any, after: Any) -> Any:
    """Rounded to the dtypes that were there before."""
    types = [leaf.dtype for leaf in jax.tree.leaves(before)]
    leaves, structure = jax.tree.flatten(after)
    rounded = [leaf.astype(of) for leaf, of in zip(leaves, types, strict=True)]
    return jax.tree.unflatten(structure, rounded)
