"""Fingerprints of regions, to check that a node traces the compiled function.

Every process traces the function itself. Its file may behave differently in each
process, for example by iterating over a set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from placer.ops.functions.complex_values import is_complex
from placer.ops.functions.cut import Region


def fingerprint(region: Region) -> str:
    """Return the fingerprint of a region, as one line of text.

    It is a hash of the equations, the operands and the guards, followed by the sum of
    absolute values of each constant array. A complex array has two sums: of its real and
    of its imaginary parts. Machines may round these sums differently.
    """
    start = repr((region.guards, region.operands))
    if region.split is not None:
        start += repr((region.split, region.random))
    return fingerprint_of_jaxpr(region.closed, start)


def fingerprint_of_jaxpr(closed: Any, start: str = "") -> str:
    """Return the fingerprint of a closed jaxpr, with other text that it depends on."""
    digest = hashlib.sha256(start.encode())
    for text in _jaxpr_text(closed.jaxpr):
        digest.update(text.encode())
    sums = (each for const in closed.consts for each in _magnitudes(const))
    magnitudes = [f"{each:.6g}" for each in sums]
    return " ".join([digest.hexdigest()[:16], *magnitudes])


def has_fingerprint(region: Region, text: str) -> bool:
    """Return True if `text` is the region's fingerprint, up to rounding of arrays."""
    return is_same_fingerprint(fingerprint(region), text)


def is_same_fingerprint(one: str, other: str) -> bool:
    """Return True if two fingerprints are equal, up to rounding of arrays."""
    (own, *sums), (others, *other_sums) = one.split(), other.split()
    if own != others or len(sums) != len(other_sums):
        return False
    return bool(np.allclose([*map(float, sums)], [*map(float, other_sums)], rtol=1e-3))


def _jaxpr_text(jaxpr: Any) -> Iterator[str]:
    """Yield the text of a jaxpr, with numbers as variable names."""
    numbers: dict[Any, int] = {}
    for var in (*jaxpr.constvars, *jaxpr.invars):
        yield f"{numbers.setdefault(var, len(numbers))}:{_type(var)};"
    for eqn in jaxpr.eqns:
        yield f"{eqn.primitive.name}{_params_text(eqn.params)}("
        for atom in eqn.invars:
            if isinstance(atom, core.Literal):
                yield f"{np.asarray(atom.val).tolist()!r},"
            else:
                yield f"{numbers[atom]},"
        yield ")"
        for inner in core.jaxprs_in_params(eqn.params):
            yield from _jaxpr_text(inner)
        for var in eqn.outvars:
            yield f"{numbers.setdefault(var, len(numbers))}:{_type(var)};"
    for atom in jaxpr.outvars:
        yield f"{numbers.get(atom) if not isinstance(atom, core.Literal) else atom.val};"


def _type(var: Any) -> str:
    return f"{getattr(var.aval, 'dtype', '')}{getattr(var.aval, 'shape', '')}"


def _params_text(params: Any) -> str:
    """Return the parameters of an equation that print alike in every process."""
    return repr([(k, v) for k, v in sorted(params.items()) if _is_plain(v)])


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _magnitudes(const: Any) -> Iterator[float]:
    """Yield the sum of absolute values of an array, of each part of a complex one."""
    if jnp.issubdtype(const.dtype, jax.dtypes.prng_key):
        with jax.ensure_compile_time_eval():  # the region may be traced at this moment
            const = jax.random.key_data(const)
    array = np.asarray(const)
    for part in (array.real, array.imag) if is_complex(array) else (array,):
        yield float(np.abs(part.astype(np.float64)).sum())
