"""The tree of an optax optimizer's state, as a list of arrays."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from placer.errors import PlacerError


@dataclass(frozen=True, slots=True)
class StateLeaf:
    """An array of the state.

    A random key is stored as its data: an array of `uint32`.

    Attributes:
        path: the keys on the path.
        parameter: the parameter that the path names, if any.
        name: the path without the parameter, such as `0.mu`.
        shape, dtype: the type of the array.
    """

    path: tuple[str, ...]
    parameter: str
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class StateTree:
    """The structure of a state.

    Attributes:
        optimizer: the name of the optimizer's function, for messages.
        definition: the structure as JAX has it.
        paths: the path of each leaf.
        impls: for each leaf, the implementation of a random key; None for an array.
    """

    optimizer: str
    definition: Any
    paths: tuple[Any, ...]
    impls: tuple[Any, ...]

    def pack(self, leaves: Sequence[Any]) -> Any:
        """Return the state with these arrays."""
        pairs = zip(leaves, self.impls, strict=True)
        keyed = [
            leaf if impl is None else jax.random.wrap_key_data(leaf, impl=impl)
            for leaf, impl in pairs
        ]
        return jax.tree.unflatten(self.definition, keyed)

    def unpack(self, state: Any) -> list[Any]:
        """Return the arrays of a state.

        Raises PlacerError if it has another structure, or a leaf that is not a usable array.
        """
        flat, definition = jax.tree_util.tree_flatten_with_path(state)
        if definition != self.definition:
            old = [_keys(path) for path in self.paths]
            new = [_keys(path) for path, _ in flat]
            differing = next(
                (path for path in (*new, *old) if (path in old) != (path in new)), ()
            )
            at = f", first at {'.'.join(differing)}" if differing else ""
            raise PlacerError(
                f"the update of '{self.optimizer}' changes the structure of its state{at}",
                hint="return a state with the structure that init returns",
            )
        for path, leaf in flat:
            _check_leaf(leaf, path, self.optimizer)
        return [_plain(leaf) for _, leaf in flat]

    def check_types(self, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Raise PlacerError if an update changes the shape or the dtype of a leaf."""
        for path, a, b in zip(self.paths, old, new, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise PlacerError(
                    f"the update of '{self.optimizer}' changes {'.'.join(_keys(path))} of"
                    f" its state from {a.dtype}{list(a.shape)} to"
                    f" {b.dtype}{list(b.shape)}",
                    hint="keep the dtype and the shape of each array of the state",
                )

    def leaves(
        self, structs: Sequence[Any], parameters: Container[str]
    ) -> tuple[StateLeaf, ...]:
        """Return the leaves with the types of `structs`; `parameters` are the names."""
        leaves = []
        for path, struct in zip(self.paths, structs, strict=True):
            keys = _keys(path)
            at = _place_of_parameter(path, parameters)
            rest = keys if at is None else (*keys[:at], *keys[at + 1 :])
            parameter = "" if at is None else keys[at]
            name = ".".join(rest) or "state"
            shape, dtype = tuple(struct.shape), str(struct.dtype)
            leaves.append(StateLeaf(keys, parameter, name, shape, dtype))
        return tuple(leaves)


def tree_of(state: Any, optimizer: str) -> StateTree:
    """Return the structure of the first state of an optimizer.

    Raises PlacerError if the state is that of `optax.lookahead`.
    """

    def is_lookahead(value: Any) -> bool:
        return type(value).__name__ == "LookaheadState"

    if any(map(is_lookahead, jax.tree.leaves(state, is_leaf=is_lookahead))):
        raise PlacerError(
            f"'{optimizer}' uses optax.lookahead, which trains two copies of the"
            " parameters",
            hint="keep a running mean of the parameters in the state instead, and"
            " return it from the function of eval_params",
        )
    flat, definition = jax.tree_util.tree_flatten_with_path(state)
    impls = tuple(_key_impl(leaf) for _, leaf in flat)
    return StateTree(optimizer, definition, tuple(path for path, _ in flat), impls)


def _check_leaf(leaf: Any, path: Sequence[Any], optimizer: str) -> None:
    at = ".".join(_keys(path)) or "its state"
    is_number = isinstance(leaf, bool | int | float | complex | np.generic)
    if not is_number and not isinstance(leaf, jax.Array | np.ndarray):
        raise PlacerError(
            f"the state of '{optimizer}' has {leaf!r:.64} at {at}, which is not an array",
            hint="keep only arrays and numbers in the state",
        )
    if jnp.iscomplexobj(_plain(leaf)):
        raise PlacerError(
            f"the state of '{optimizer}' has complex numbers at {at}",
            hint="keep the real and the imaginary parts in two arrays",
        )
    dtype = jnp.result_type(_plain(leaf))
    if dtype.isbuiltin != 1 and dtype != jnp.bfloat16:
        raise PlacerError(
            f"the state of '{optimizer}' has {dtype} at {at}, which a checkpoint cannot"
            " store",
            hint="keep it as bfloat16 or int8, and convert it in the update",
        )


def _plain(leaf: Any) -> Any:
    return leaf if _key_impl(leaf) is None else jax.random.key_data(leaf)


def _key_impl(leaf: Any) -> Any:
    is_key = jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key)
    return jax.random.key_impl(leaf) if is_key else None


def _keys(path: Sequence[Any]) -> tuple[str, ...]:
    return tuple(
        str(next(getattr(key, a) for a in ("key", "name", "idx") if hasattr(key, a)))
        for key in path
    )


def _place_of_parameter(path: Sequence[Any], parameters: Container[str]) -> int | None:
    """Return the position of the last dict key that is a parameter's name."""
    for at in reversed(range(len(path))):
        key = path[at]
        if isinstance(key, jax.tree_util.DictKey) and key.key in parameters:
            return at
    return None
