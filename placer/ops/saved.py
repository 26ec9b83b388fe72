"""Values that a forward function saves for its backward function."""

from __future__ import annotations

from typing import Any

import jax


class Saved:
    """Named values as attributes; a JAX pytree that can pass through jitted functions.

    s = ops.Saved()
    s.h1, s.h1_res = ops.fc.forward(image, *p.h1, activation="relu")
    """

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"nothing is saved as '{name}'")


def _flatten(saved: Saved) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    values = vars(saved)
    return tuple(values.values()), tuple(values)


def _unflatten(names: tuple[str, ...], values: tuple[Any, ...]) -> Saved:
    saved = Saved()
    vars(saved).update(zip(names, values, strict=True))
    return saved


jax.tree_util.register_pytree_node(Saved, _flatten, _unflatten)
