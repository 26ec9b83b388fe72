"""Finds random numbers that a traced function would repeat, or draw in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from jax.extend import core
from jax.interpreters import partial_eval

from placer.errors import PlacerError
from placer.ops.functions.primitives import open_jaxpr, scan_counts
from placer.ops.functions.user_lines import source_line

DRAWS = {
    "random_bits",
    "random_gamma",
    "rng_bit_generator",
    "rng_uniform",
    "threefry2x32",
}
"""Primitives that return random numbers; the first operand is their key."""

FIXED, FROM_KEY, FROM_BATCH = 0, 1, 2
"""What a value depends on: on no input, on the step (its key, parameters, state), or on
the batch."""

Origins = list[int]
"""For each value, what it depends on."""


def check_draws(closed: Any, origins: Sequence[int], training: bool) -> None:
    """Raise PlacerError if a result depends on random numbers that must not be drawn.

    Every step would repeat numbers with a fixed key. An evaluation must not use the key of
    the step. `origins` says what each input depends on.
    """
    jaxpr = closed.jaxpr
    live, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    _Check(training).jaxpr(live, list(compress(origins, used)), "")


class _Check:
    def __init__(self, training: bool) -> None:
        self._training = training

    def jaxpr(self, jaxpr: Any, inputs: Origins, line: str) -> Origins:
        """Return for each result of the jaxpr what it depends on."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))

        def origin(atom: Any) -> int:
            return FIXED if isinstance(atom, core.Literal) else known.get(atom, FIXED)

        for eqn in jaxpr.eqns:
            operands = [origin(atom) for atom in eqn.invars]
            if eqn.primitive.name in DRAWS:
                key = operands[0] if operands else FIXED
                if key == FIXED:
                    raise _repeated_error(eqn, line)
                if key == FROM_KEY and not self._training:
                    raise _evaluation_error(eqn, line)
            results = self._results(eqn, operands, source_line(eqn) or line)
            known.update(zip(eqn.outvars, results, strict=True))
        return [origin(atom) for atom in jaxpr.outvars]

    def _results(self, eqn: Any, operands: Origins, line: str) -> Origins:
        params = eqn.params
        match eqn.primitive.name:
            case "cond":
                branches = [
                    self.jaxpr(each.jaxpr, operands[1:], line)
                    for each in params["branches"]
                ]
                return [min(branch) for branch in zip(*branches, strict=True)]
            case "while":
                conds, consts = params["cond_nconsts"], params["body_nconsts"]
                carry = operands[conds + consts :]
                self.jaxpr(params["cond_jaxpr"].jaxpr, operands[:conds] + carry, line)
                body, inputs = params["body_jaxpr"].jaxpr, operands[conds:]
                return self._loop(body, inputs, consts, len(carry), line)
            case "scan":
                body, (consts, carried) = params["jaxpr"].jaxpr, scan_counts(params)
                return self._loop(body, operands, consts, carried, line)
        bodies = [open_jaxpr(each)[0] for each in core.jaxprs_in_params(params)]
        if len(bodies) == 1 and len(bodies[0].invars) == len(operands):
            results = self.jaxpr(bodies[0], operands, line)
            if len(results) == len(eqn.outvars):
                return results
        else:
            for each in bodies:  # its inputs are unknown, so they count as fixed
                self.jaxpr(each, [FIXED] * len(each.invars), line)
        return [max(operands, default=FIXED)] * len(eqn.outvars)

    def _loop(
        self, body: Any, operands: Origins, consts: int, carried: int, line: str
    ) -> Origins:
        """Return for each result of a loop what it depends on."""
        inputs, carry = list(operands), slice(consts, consts + carried)
        # A carried value comes from the batch only if it does after every iteration.
        while True:
            results = self.jaxpr(body, inputs, line)
            after = [min(a, b) for a, b in zip(inputs[carry], results, strict=False)]
            if after == inputs[carry]:
                return after + results[carried:]
            inputs[carry] = after


def _repeated_error(eqn: Any, line: str) -> PlacerError:
    return PlacerError(
        f"'{eqn.primitive.name}'{source_line(eqn) or line} draws random numbers"
        " with a key that is the same in every step, and in evaluation",
        hint="give the function an argument `key`: placer passes a new key in each step;"
        " create constant random numbers outside of the function, at the top of its file",
    )


def _evaluation_error(eqn: Any, line: str) -> PlacerError:
    return PlacerError(
        f"'{eqn.primitive.name}'{source_line(eqn) or line} draws random numbers in"
        " evaluation",
        hint="give the function an argument `training`, and draw only if it is true:"
        " placer passes True in training, and False in evaluation",
    )
