"""What tells whether a region of a traced function is the one that was compiled.

Every process makes its own: from a file that may do another thing each time it is
imported, or go through a set, whose order is each process's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from placer.regions.cut import Region


def likeness(region: Region) -> str:
    """A hash of what the region computes of what, in one line with the size of each
    array that its file holds: sums of absolutes, which other machines may round
    otherwise."""
    found = hashlib.sha256(repr((region.said, region.takes)).encode())
    for text in _written(region.closed.jaxpr):
        found.update(text.encode())
    sizes = [f"{_size(const):.6g}" for const in region.closed.consts]
    return " ".join([found.hexdigest()[:16], *sizes])


def is_like(region: Region, text: str) -> bool:
    """Whether the region is the one that the text is of."""
    (mine, *sizes), (other, *others) = likeness(region).split(), text.split()
    if mine != other or len(sizes) != len(others):
        return False
    return bool(np.allclose([*map(float, sizes)], [*map(float, others)], rtol=1e-3))


def _written(jaxpr: Any) -> Iterator[str]:
    """Its equations, values by number."""
    numbers: dict[Any, int] = {}
    for var in (*jaxpr.constvars, *jaxpr.invars):
        yield f"{numbers.setdefault(var, len(numbers))}:{_type(var)};"
    for eqn in jaxpr.eqns:
        yield f"{eqn.primitive.name}{_plain(eqn.params)}("
        for atom in eqn.invars:
            if isinstance(atom, core.Literal):
                yield f"{np.asarray(atom.val).tolist()!r},"
            else:
                yield f"{numbers[atom]},"
        yield ")"
        for inner in core.jaxprs_in_params(eqn.params):
            yield from _written(inner)
        for var in eqn.outvars:
            yield f"{numbers.setdefault(var, len(numbers))}:{_type(var)};"
    for atom in jaxpr.outvars:
        yield f"{numbers.get(atom) if not isinstance(atom, core.Literal) else atom.val};"


def _type(var: Any) -> str:
    return f"{getattr(var.aval, 'dtype', '')}{getattr(var.aval, 'shape', '')}"


def _plain(params: Any) -> str:
    """Those of an equation's parameters whose text is the same in every process."""
    return repr([(k, v) for k, v in sorted(params.items()) if _is_plain(v)])


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _size(const: Any) -> float:
    if jnp.issubdtype(const.dtype, jax.dtypes.prng_key):
        with jax.ensure_compile_time_eval():  # also while a region is traced
            const = jax.random.key_data(const)
    return float(np.abs(np.asarray(const).astype(np.float64)).sum())
