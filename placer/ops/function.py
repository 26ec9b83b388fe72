"""Calls the JAX function of an op, directly or as a forward and a backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from placer.place.types import TensorType


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Residuals:
    """The residuals of a forward, without saved operands; a JAX pytree.

    The arrays are in `extra`. All other fields are static, so residuals can pass
    through jitted functions: the pytree of the VJP, for each of its leaves the index of
    an operand (None: the next of `extra`), the saved operands' indices, and the
    results' shapes and dtypes.
    """

    extra: tuple[jax.Array, ...]
    tree: Any = field(metadata={"static": True})
    leaves: tuple[int | None, ...] = field(metadata={"static": True})
    saves: tuple[int, ...] = field(metadata={"static": True})
    results: tuple[jax.ShapeDtypeStruct, ...] = field(metadata={"static": True})


Check = Callable[[str, Sequence[Any], Sequence[Any]], None]
"""Inspects a computed op: its kind, its operands and its results."""
_CHECK: ContextVar[Check | None] = ContextVar("check", default=None)


@contextmanager
def check_results(check: Check) -> Iterator[None]:
    """Call `check` with the results of every op that this thread computes.

    With `jax.disable_jit`, the results are arrays. Inside a jitted function they are
    tracers, and `check` is called only while JAX traces the function.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


@dataclass(frozen=True, slots=True)
class Function:
    """The function of one op kind: `ops.fc(x, w, b)`, `ops.fc.forward(x, w, b)`.

    Attributes:
        kind: the op kind.
        fn: the JAX function.
        bound: attributes that all calls have.
    """

    kind: str
    fn: Callable[..., Any]
    bound: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def bind(self, fn: Callable[..., Any], **attrs: Any) -> Function:
        """Return the function with a user's function and attributes for all calls.

        Args:
            fn: the user's function, for the ops `call` and `metric`.
            attrs: attributes of the op.

        Example:
            ffn = ops.call.bind(serve.ffn, params=("w",), batch="rows")
        """
        return Function(self.kind, self.fn, {**self.bound, "fn": fn, **attrs})

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """Return the result: an array, or a tuple if the op has several results."""
        arrays = _as_arrays(inputs)
        out = self.fn(*arrays, **self.bound, **attrs)
        self._report(arrays, out if isinstance(out, tuple) else (out,))
        return out

    def forward(self, *inputs: Any, **attrs: Any) -> tuple[Any, Residuals]:
        """Return the result and the residuals that `backward` needs.

        The residuals do not contain the saved operands. The caller has them already,
        and a weight that leaves a jitted function would be copied.
        """
        arrays = _as_arrays(inputs)
        attrs = {**self.bound, **attrs}
        out, vjp = jax.vjp(partial(self.fn, **attrs), *arrays)
        saves = self._saves(arrays, attrs)
        vjp_leaves, tree = jax.tree.flatten(vjp)
        leaves = tuple(
            next((i for i in saves if arrays[i] is leaf), None) for leaf in vjp_leaves
        )
        pairs = zip(leaves, vjp_leaves, strict=True)
        extra = tuple(leaf for operand, leaf in pairs if operand is None)
        outs = out if isinstance(out, tuple) else (out,)
        self._report(arrays, outs)
        results = tuple(jax.ShapeDtypeStruct(y.shape, y.dtype) for y in outs)
        return out, Residuals(extra, tree, leaves, saves, results)

    def backward(
        self, residuals: Residuals, *saved_then_dys: Any
    ) -> tuple[jax.Array | None, ...]:
        """Return the cotangents of the operands; None for an integer operand.

        `saved_then_dys` are the saved operands in the declaration's order, then the
        cotangents of the results. A Python number becomes an array of the result's
        dtype. None is the cotangent of a result that the loss does not depend on.

        Raises TypeError if the number of arguments is wrong.
        """
        saves, results = residuals.saves, residuals.results
        if len(saved_then_dys) != len(saves) + len(results):
            raise TypeError(
                f"{self.kind}.backward takes the residuals, {len(saves)} saved"
                f" operands and {len(results)} cotangents, got"
                f" {len(saved_then_dys)}"
            )
        arrays = _as_arrays(saved_then_dys[: len(saves)])
        saved = dict(zip(saves, arrays, strict=True))
        dys = tuple(map(_cotangent, saved_then_dys[len(saves) :], results))
        extra = iter(residuals.extra)
        vjp_leaves = [next(extra) if i is None else saved[i] for i in residuals.leaves]
        vjp = jax.tree.unflatten(residuals.tree, vjp_leaves)
        cotangents: Sequence[Any] = vjp(dys if len(dys) > 1 else dys[0])
        dxs = tuple(None if _is_empty(dx) else dx for dx in cotangents)
        self._report((*arrays, *dys), [dx for dx in dxs if dx is not None], ".backward")
        return dxs

    def _report(
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
        declared = {name: value for name, value in attrs.items() if name != "count"}
        return declaration.saves(types, complete(declaration, declared))


def _as_arrays(inputs: Sequence[Any]) -> tuple[jax.Array, ...]:
    # Operands must be arrays: forward finds them among the leaves of the VJP by
    # identity.
    return tuple(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in inputs)


def _cotangent(dy: Any, result: jax.ShapeDtypeStruct) -> Any:
    if dy is None:
        if not jnp.issubdtype(result.dtype, jnp.inexact):
            return np.zeros(result.shape, jax.dtypes.float0)
        return jnp.zeros(result.shape, result.dtype)
    return jnp.asarray(dy, result.dtype) if isinstance(dy, int | float) else dy


def _is_empty(cotangent: Any) -> bool:
    """Return True for the cotangent of an integer, which has dtype float0 in JAX."""
    return bool(cotangent.dtype == jax.dtypes.float0)
