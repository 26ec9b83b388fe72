"""The reference for random numbers of rows: plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from placer.ops.functions.primitives import scan_counts


def draw_by_row(fn: Callable[..., Any], rows: int) -> Callable[..., Any]:
    """Return a function of one result in which row r is drawn with `fold_in(key, r)`.

    A draw has the rows in the first axis.
    """

    def run(jaxpr: Any, consts: Any, inputs: Any) -> Any:
        values = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True)
        )
        for eqn in jaxpr.eqns:
            xs = [
                x.val if isinstance(x, core.Literal) else values[x] for x in eqn.invars
            ]
            inner, params = eqn.params.get("jaxpr"), eqn.params
            if eqn.primitive.name in DRAWS and params["shape"][:1] == (rows,):
                params = {**params, "shape": params["shape"][1:]}
                keys = [jax.random.fold_in(xs[0], row) for row in range(rows)]
                out = jax.numpy.stack(
                    [eqn.primitive.bind(key, **params) for key in keys]
                )
            elif eqn.primitive.name == "scan":
                first, count = scan_counts(params)

                def step(
                    carry: Any,
                    x: Any,
                    inner: Any = inner,
                    fixed: Any = xs[:first],
                    count: int = count,
                ) -> Any:
                    out = run(inner.jaxpr, inner.consts, [*fixed, *carry, *x])
                    return out[:count], out[count:]

                start, sequences = xs[first : first + count], xs[first + count :]
                settings = {key: params[key] for key in ("length", "reverse")}
                carry, out = jax.lax.scan(step, start, sequences, **settings)
                out = [*carry, *out]
            elif eqn.primitive.name == "jit":
                out = run(inner.jaxpr, inner.consts, xs)
            elif eqn.primitive.name == "remat2":
                out = run(inner, (), xs)
            else:
                params = eqn.primitive.get_bind_params(params)
                out = eqn.primitive.bind(*xs, **params)
            out = out if isinstance(out, list | tuple) else [out]
            values |= zip(eqn.outvars, out, strict=True)
        return [
            x.val if isinstance(x, core.Literal) else values[x] for x in jaxpr.outvars
        ]

    def drawn(*args: Any) -> Any:
        closed = jax.make_jaxpr(fn)(*args)
        return run(closed.jaxpr, closed.consts, jax.tree.leaves(args))[0]

    return drawn


DRAWS = ("random_bits", "random_split")
