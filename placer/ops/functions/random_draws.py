"""Finds random numbers that a traced function would repeat in every step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from jax.extend import core
from jax.interpreters import partial_eval

from placer.errors import PlacerError
from placer.ops.functions.flatten import scan_counts, source_line

DRAWS = {
    "random_bits",
    "random_gamma",
    "rng_bit_generator",
    "rng_uniform",
    "threefry2x32",
}
"""Primitives that return random numbers; the first operand is their key."""

FromBatch = list[bool]
"""For each value, whether it comes from the batch."""


def check_draws(closed: Any, rows: Sequence[bool]) -> None:
    """Raise PlacerError if a result depends on random numbers that every step repeats.

    The key of such numbers does not come from the batch. `rows` says whether each input
    does.
    """
    jaxpr = closed.jaxpr
    live, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    _check_jaxpr(live, list(compress(rows, used)), "")


def _check_jaxpr(jaxpr: Any, inputs: FromBatch, line: str) -> FromBatch:
    """Return for each result of the jaxpr whether it comes from the batch."""
    from_batch = dict(zip(jaxpr.invars, inputs, strict=True))

    def is_from_batch(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and from_batch.get(atom, False)

    for eqn in jaxpr.eqns:
        operands = [is_from_batch(atom) for atom in eqn.invars]
        if eqn.primitive.name in DRAWS and not any(operands[:1]):
            raise _draw_error(eqn, line)
        results = _results_from_batch(eqn, operands, source_line(eqn) or line)
        from_batch.update(zip(eqn.outvars, results, strict=True))
    return [is_from_batch(atom) for atom in jaxpr.outvars]


def _results_from_batch(eqn: Any, operands: FromBatch, line: str) -> FromBatch:
    params = eqn.params
    match eqn.primitive.name:
        case "cond":
            branches = [
                _check_jaxpr(each.jaxpr, operands[1:], line)
                for each in params["branches"]
            ]
            return [all(branch) for branch in zip(*branches, strict=True)]
        case "while":
            conds, consts = params["cond_nconsts"], params["body_nconsts"]
            carry = operands[conds + consts :]
            _check_jaxpr(params["cond_jaxpr"].jaxpr, operands[:conds] + carry, line)
            body, inputs = params["body_jaxpr"].jaxpr, operands[conds:]
            return _check_loop(body, inputs, consts, len(carry), line)
        case "scan":
            body, (consts, carried) = params["jaxpr"].jaxpr, scan_counts(params)
            return _check_loop(body, operands, consts, carried, line)
    bodies = [getattr(each, "jaxpr", each) for each in core.jaxprs_in_params(params)]
    if len(bodies) == 1 and len(bodies[0].invars) == len(operands):
        results = _check_jaxpr(bodies[0], operands, line)
        if len(results) == len(eqn.outvars):
            return results
    else:
        for each in bodies:  # its inputs are unknown, so they count as fixed
            _check_jaxpr(each, [False] * len(each.invars), line)
    return [any(operands)] * len(eqn.outvars)


def _check_loop(
    body: Any, operands: FromBatch, consts: int, carried: int, line: str
) -> FromBatch:
    """Return for each result of a loop whether it comes from the batch."""
    inputs, carry = list(operands), slice(consts, consts + carried)
    # A carried value comes from the batch only if it does after every iteration.
    while True:
        results = _check_jaxpr(body, inputs, line)
        after = [a and b for a, b in zip(inputs[carry], results, strict=False)]
        if after == inputs[carry]:
            return after + results[carried:]
        inputs[carry] = after


def _draw_error(eqn: Any, line: str) -> PlacerError:
    return PlacerError(
        f"'{eqn.primitive.name}'{source_line(eqn) or line} draws random numbers"
        " with a key that is the same in every step, and in evaluation",
        hint="switch the random op off (model.eval() in Flax nnx in the file that"
        " makes the model, deterministic=True, or Equinox's inference mode) and"
        " call layers.dropout; create constant random numbers outside of the"
        " function, at the top of its file",
    )
