"""Random numbers that a traced function would draw again, the same, in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core
from jax.interpreters import partial_eval

from placer.errors import PlacerError
from placer.regions.flatten import scan_counts, where

DRAWS = {
    "random_bits",
    "random_gamma",
    "rng_bit_generator",
    "rng_uniform",
    "threefry2x32",
}
"""Primitives that give random numbers; the first operand is their key."""

Known = list[bool]
"""Of values, whether each comes from the batch."""


def check_draws(closed: Any, rows: Sequence[bool]) -> None:
    """Raise PlacerError where a result depends on random numbers whose key is the same
    in every step: one that does not come from the batch. `rows` says which inputs do.
    """
    jaxpr = closed.jaxpr
    live, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    _look(live, [x for x, is_used in zip(rows, used, strict=True) if is_used], "")


def _look(jaxpr: Any, given: Known, line: str) -> Known:
    """Whether each result of the jaxpr comes from the batch. `line` is the user's, for
    equations of libraries."""
    comes = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and comes.get(atom, False)

    for eqn in jaxpr.eqns:
        operands = [of(atom) for atom in eqn.invars]
        if eqn.primitive.name in DRAWS and not any(operands[:1]):
            raise _error(eqn, line)
        found = _results(eqn, operands, where(eqn) or line)
        comes.update(zip(eqn.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _results(eqn: Any, operands: Known, line: str) -> Known:
    params = eqn.params
    match eqn.primitive.name:
        case "cond":
            ways = [
                _look(each.jaxpr, operands[1:], line) for each in params["branches"]
            ]
            return [all(way) for way in zip(*ways, strict=True)]
        case "while":
            conds, consts = params["cond_nconsts"], params["body_nconsts"]
            first, begin = operands[:conds], operands[conds + consts :]
            _look(params["cond_jaxpr"].jaxpr, first + begin, line)
            fixed = operands[conds : conds + consts]
            return _repeated(params["body_jaxpr"].jaxpr, fixed, begin, [], line)
        case "scan":
            consts, carried = scan_counts(params)
            fixed, rest = operands[:consts], operands[consts:]
            begin, sliced = rest[:carried], rest[carried:]
            return _repeated(params["jaxpr"].jaxpr, fixed, begin, sliced, line)
    inner = [getattr(each, "jaxpr", each) for each in core.jaxprs_in_params(params)]
    if len(inner) == 1 and len(inner[0].invars) == len(operands):
        found = _look(inner[0], operands, line)
        if len(found) == len(eqn.outvars):
            return found
    else:
        for each in inner:  # what its inputs are is not known
            _look(each, [False] * len(each.invars), line)
    return [any(operands)] * len(eqn.outvars)


def _repeated(body: Any, fixed: Known, begin: Known, each: Known, line: str) -> Known:
    """Of a loop; what it carries has to come from the batch in every round."""
    while True:
        found = _look(body, fixed + begin + each, line)
        carried = [a and b for a, b in zip(begin, found, strict=False)]
        if carried == begin:
            return begin + found[len(begin) :]
        begin = carried


def _error(eqn: Any, line: str) -> PlacerError:
    return PlacerError(
        f"'{eqn.primitive.name}'{where(eqn) or line} draws random numbers by a key that is the"
        " same in every step, and in evaluation",
        hint="switch it off in there (model.eval(), deterministic=True or Equinox's"
        " inference mode) and call layers.dropout; numbers that are to stay the same"
        " are made outside of the function, at the top of its file",
    )
