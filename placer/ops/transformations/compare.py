"""Compares equations of two traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh

from placer.ops.functions.user_lines import source_line
from placer.ops.transformations.dependence import is_elementwise
from placer.ops.transformations.equations import Equations, inline_calls

Shape = tuple[int, ...]

_JAXPRS = core.Jaxpr | core.ClosedJaxpr
"""One class since JAX 0.12."""


class DifferError(Exception):
    """The first difference of two traces, in words."""


def check_same(
    one: Equations, other: Equations, shapes: tuple[Shape, Shape] | None = None
) -> None:
    """Require that two functions have the same equations.

    Args:
        one, other: the functions. The order of their inputs is the same.
        shapes: the shapes of a whole parameter and of a block. A value of `one` with the
            first shape may have the second one in `other`, if it is computed element by
            element or repeats one number.

    Raises:
        DifferError: if they differ.
    """
    if len(one.inputs) != len(other.inputs) or len(one.results) != len(other.results):
        raise DifferError("it has other inputs and results")
    pairs = dict(zip(one.inputs, other.inputs, strict=True))
    for a, b in pairs.items():
        _check_types(a, b, shapes, "an input")
    if len(one.consts) != len(other.consts):
        raise DifferError("it has other constants")
    for (a, mine), (b, theirs) in zip(
        one.consts.items(), other.consts.items(), strict=True
    ):
        if not is_same(mine, theirs):
            raise DifferError("it has other constants")
        pairs[a] = b
    for position, (a, b) in enumerate(zip(one.eqns, other.eqns, strict=False)):
        at = f"'{a.primitive.name}'{source_line(a)}"
        _check_equation(a, b, pairs, shapes, at)
        if position in one.branches:
            inner = zip(one.branches[position], other.branches[position], strict=True)
            for branch, its_branch in inner:
                check_same(branch, its_branch, shapes)
        pairs.update(zip(a.outvars, b.outvars, strict=True))
    if len(one.eqns) != len(other.eqns):
        longer = max(one.eqns, other.eqns, key=len)
        eqn = longer[min(len(one.eqns), len(other.eqns))]
        raise DifferError(
            f"only one of them has '{eqn.primitive.name}'{source_line(eqn)}"
        )
    for a, b in zip(one.results, other.results, strict=True):
        _check_atoms(a, b, pairs, "a result")


def is_same(one: Any, other: Any) -> bool:
    """Return True if two values, such as arrays, are the same."""
    if isinstance(one, jax.Array | np.ndarray | np.generic | float):
        a, b = np.asarray(_data(one)), np.asarray(_data(other))
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    try:
        return type(one) is type(other) and bool(one == other)
    except ValueError:  # an object that contains arrays
        return False


def _data(value: Any) -> Any:
    is_key = jax.numpy.issubdtype(getattr(value, "dtype", float), jax.dtypes.prng_key)
    if is_key:
        with jax.ensure_compile_time_eval():
            return jax.random.key_data(value)
    return value


def _check_equation(
    one: Any,
    other: Any,
    pairs: Mapping[Any, Any],
    shapes: tuple[Shape, Shape] | None,
    at: str,
) -> None:
    if one.primitive is not other.primitive:
        raise DifferError(f"{at} is '{other.primitive.name}' there")
    if len(one.invars) != len(other.invars) or len(one.outvars) != len(other.outvars):
        raise DifferError(f"{at} has other operands")
    for a, b in zip(one.invars, other.invars, strict=True):
        _check_atoms(a, b, pairs, at)
    scaled = False
    for a, b in zip(
        (*one.invars, *one.outvars), (*other.invars, *other.outvars), strict=True
    ):
        scaled |= _check_types(a, b, shapes, at)
    name, params = one.primitive.name, one.params
    if params.keys() != other.params.keys():
        raise DifferError(f"{at} has other parameters")
    skipped: tuple[str, ...] = ("branches",) if name == "cond" else ()
    if scaled and name != "cond":
        if not (_is_repetition(one) and _is_repetition(other)) and not (
            is_elementwise(one) and is_elementwise(other)
        ):
            raise DifferError(f"{at} depends on the shape of the parameter")
        skipped = _SHAPE_PARAMS.get(name, ())
    for key, mine in params.items():
        if key not in skipped and not _is_same_param(mine, other.params[key]):
            raise DifferError(f"{at} has another '{key}'")


_SHAPE_PARAMS = {
    "broadcast_in_dim": ("shape", "broadcast_dimensions"),
    "reshape": ("new_sizes",),
}


def _is_repetition(eqn: Any) -> bool:
    """Return True if an equation repeats one number."""
    return eqn.primitive.name == "broadcast_in_dim" and not eqn.invars[0].aval.shape


def _check_atoms(one: Any, other: Any, pairs: Mapping[Any, Any], at: str) -> None:
    literals = [isinstance(atom, core.Literal) for atom in (one, other)]
    if any(literals):
        if not all(literals) or not is_same(one.val, other.val):
            mine, theirs = (_text(atom) for atom in (one, other))
            raise DifferError(f"{at} uses {mine}, and {theirs} there")
    elif pairs.get(one) is not other:
        raise DifferError(f"{at} has other operands")


def _text(atom: Any) -> str:
    return str(atom.val) if isinstance(atom, core.Literal) else "a value"


def _check_types(
    one: Any, other: Any, shapes: tuple[Shape, Shape] | None, at: str
) -> bool:
    """Require that two values have corresponding types; return True if the shapes differ."""
    a, b = one.aval, other.aval
    weak = [getattr(aval, "weak_type", False) for aval in (a, b)]
    if a.dtype != b.dtype or weak[0] != weak[1]:
        raise DifferError(f"{at} computes {a.dtype}, and {b.dtype} there")
    if a.shape == b.shape:
        return False
    if (a.shape, b.shape) != shapes:
        raise DifferError(
            f"{at} has a value of shape {list(a.shape)}, and of {list(b.shape)} there"
        )
    return True


def _is_same_param(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(
            _is_same_param(a, b) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, _JAXPRS) and isinstance(other, _JAXPRS):
        try:
            check_same(inline_calls(one), inline_calls(other))
        except DifferError:
            return False
        return True
    if isinstance(one, Callable) and not isinstance(one, type | Mesh):  # type: ignore[arg-type]
        return one is other
    return is_same(one, other)


def match_equations(
    pattern: Equations, equations: Equations, inputs: Sequence[Any]
) -> dict[Any, Any]:
    """Find the equations of a function among others.

    Args:
        pattern: the function to find.
        equations: the other equations.
        inputs: their variables for the inputs of `pattern`.

    Returns:
        For each variable of `pattern` that is found, the variable that equals it.
    """
    found = dict(zip(pattern.inputs, inputs, strict=True))
    users: dict[Any, list[int]] = {}
    for position, eqn in enumerate(equations.eqns):
        for atom in eqn.invars:
            if not isinstance(atom, core.Literal):
                users.setdefault(atom, []).append(position)
    literals = [
        i
        for i, eqn in enumerate(equations.eqns)
        if all(isinstance(atom, core.Literal) for atom in eqn.invars)
    ]
    taken: set[int] = set()
    for eqn in pattern.eqns:
        operands = [a for a in eqn.invars if not isinstance(a, core.Literal)]
        if any(operand not in found for operand in operands):
            continue
        candidates = users.get(found[operands[0]], []) if operands else literals
        # Parameters of one shape have equal equations: each is matched once, in order.
        for position in sorted(candidates, key=taken.__contains__):
            other = equations.eqns[position]
            try:
                _check_equation(eqn, other, found, None, "")
            except DifferError:
                continue
            found.update(zip(eqn.outvars, other.outvars, strict=True))
            taken.add(position)
            break
    return found
