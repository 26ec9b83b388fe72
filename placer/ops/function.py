"""The JAX side of an op: plain, or cut into a forward and a backward (R5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops import registry
from placer.ops.attributes import complete
from placer.types import TensorType


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where a leaf of what JAX keeps comes back from: `extra` or the operands."""

    operand: bool
    index: int


@dataclass(frozen=True, slots=True)
class Result:
    """The type of a result, whose cotangent backward takes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Residuals:
    """What a forward keeps for its backward beside operands: a JAX pytree.

    Its arrays are `extra`; all else is static, so that it passes through the results
    and arguments of jitted functions.
    """

    extra: tuple[jax.Array, ...]
    tree: Any = field(metadata={"static": True})
    leaves: tuple[Leaf, ...] = field(metadata={"static": True})
    saves: tuple[int, ...] = field(metadata={"static": True})
    results: tuple[Result, ...] = field(metadata={"static": True})


Check = Callable[[str, Sequence[Any], Sequence[Any]], None]
"""Looks at what an op makes: its kind, its operands and its results as arrays."""
_CHECK: ContextVar[Check | None] = ContextVar("check", default=None)


@contextmanager
def checked(check: Check) -> Iterator[None]:
    """Show `check` the results of every op that is computed in this thread.

    Ops are computed one by one while jit is disabled (`jax.disable_jit`); of a jitted
    function they are computed, as tracers, only when JAX traces it.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


@dataclass(frozen=True, slots=True)
class Function:
    """The function of one op kind: `ops.fc(x, w, b)`, `ops.fc.forward(x, w, b)`."""

    kind: str
    fn: Callable[..., Any]

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """The result: one array, or a tuple where there are several."""
        arrays = _arrays(inputs)
        out = self.fn(*arrays, **attrs)
        self._show(arrays, out if isinstance(out, tuple) else (out,))
        return out

    def forward(self, *inputs: Any, **attrs: Any) -> tuple[Any, Residuals]:
        """The result, and what `backward` needs beside the saved operands.

        The operands that the declaration saves are not in the residuals: an operand is
        known where the function was called, and a weight that left a jitted function
        would be copied.
        """
        arrays = _arrays(inputs)
        out, vjp = jax.vjp(partial(self.fn, **attrs), *arrays)
        saves = self._saves(arrays, attrs)
        kept, tree = jax.tree.flatten(vjp)
        extra: list[jax.Array] = []
        leaves: list[Leaf] = []
        for leaf in kept:
            operand = next((i for i in saves if arrays[i] is leaf), None)
            if operand is None:
                leaves.append(Leaf(False, len(extra)))
                extra.append(leaf)
            else:
                leaves.append(Leaf(True, operand))
        outs = out if isinstance(out, tuple) else (out,)
        self._show(arrays, outs)
        results = tuple(Result(y.shape, y.dtype) for y in outs)
        return out, Residuals(tuple(extra), tree, tuple(leaves), saves, results)

    def backward(
        self, residuals: Residuals, *saved_then_dys: Any
    ) -> tuple[jax.Array | None, ...]:
        """The cotangents of the operands, None for an integer one.

        `saved_then_dys` are the operands that the declaration saves, in its order,
        then the cotangents of the results; a Python number is taken in the dtype of
        its result, and None is the cotangent of a result that the loss does not need.
        """
        saves, results = residuals.saves, residuals.results
        if len(saved_then_dys) != len(saves) + len(results):
            raise TypeError(
                f"{self.kind}.backward takes the residuals, {len(saves)} saved operands"
                f" and {len(results)} cotangents, {len(saved_then_dys)} given"
            )
        arrays = _arrays(saved_then_dys[: len(saves)])
        saved = dict(zip(saves, arrays, strict=True))
        dys = tuple(
            _cotangent(dy, result)
            for dy, result in zip(saved_then_dys[len(saves) :], results, strict=True)
        )
        kept = [
            saved[leaf.index] if leaf.operand else residuals.extra[leaf.index]
            for leaf in residuals.leaves
        ]
        vjp = jax.tree.unflatten(residuals.tree, kept)
        cotangents: Sequence[Any] = vjp(dys if len(dys) > 1 else dys[0])
        found = tuple(None if _is_empty(dx) else dx for dx in cotangents)
        self._show((*arrays, *dys), [dx for dx in found if dx is not None], ".backward")
        return found

    def _show(
        self, operands: Sequence[Any], results: Sequence[Any], part: str = ""
    ) -> None:
        check = _CHECK.get()
        if check is not None:
            check(f"{self.kind}{part}", operands, results)

    def _saves(
        self, arrays: Sequence[jax.Array], attrs: dict[str, Any]
    ) -> tuple[int, ...]:
        declaration = registry.find(self.kind)
        types = [TensorType(str(x.dtype), x.shape) for x in arrays]
        given = {name: value for name, value in attrs.items() if name != "count"}
        return declaration.saves(types, complete(declaration, given))


def _arrays(inputs: Sequence[Any]) -> tuple[jax.Array, ...]:
    # One array per operand, whose identity finds it again among what JAX keeps.
    return tuple(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in inputs)


def _cotangent(dy: Any, result: Result) -> Any:
    if dy is None:
        if not jnp.issubdtype(result.dtype, jnp.inexact):
            return np.zeros(result.shape, jax.dtypes.float0)
        return jnp.zeros(result.shape, result.dtype)
    return jnp.asarray(dy, result.dtype) if isinstance(dy, int | float) else dy


def _is_empty(cotangent: Any) -> bool:
    """Whether it is what JAX has for the cotangent of an integer."""
    return bool(cotangent.dtype == jax.dtypes.float0)
