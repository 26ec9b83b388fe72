"""Proves that a traced function works row by row.

Then row i of each result depends only on row i of the inputs, for any number of rows.
The batch can be split over nodes, and gradients of parameters are sums over rows.

The proof is an abstract interpretation of the jaxprs for two batch sizes at once,
equation by equation (`placer.ops.functions.row_rules`). For each value it finds the
axis with the rows of the batch, or that the value does not depend on the batch.
Primitives without a rule, and equations that depend on the number of rows, are not
proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.extend import core

from placer.ops.functions.batch_types import PROOF_BATCHES
from placer.ops.functions.cut import OUTSIDE, Cut, ValueSource
from placer.ops.functions.function import trace_function
from placer.ops.functions.mode import EVALUATION, Mode
from placer.ops.functions.primitives import CALLS, open_jaxpr, scan_counts
from placer.ops.functions.row_rules import primitive_states
from placer.ops.functions.row_states import (
    BATCH,
    EquationPair,
    NotProvenError,
    ProofContext,
    State,
    is_same,
    require,
)
from placer.place.types import BATCH as BATCH_DIM

PairStates = dict[tuple[Any, Any], State]
"""The state of each pair of variables, one variable for each batch size."""


def is_by_rows(
    fn: Callable[..., Any],
    text: str,
    rows: int = PROOF_BATCHES[1],
    mode: Mode = EVALUATION,
) -> bool:
    """Return True if there is a proof that a function works row by row.

    Random numbers with an axis of the batch count as drawn for each row.

    `text` holds its arguments. The proof compares the traces for `PROOF_BATCHES[0]`
    rows and for `rows` rows.
    """
    batches = PROOF_BATCHES[0], rows
    try:
        small, large = (trace_function(fn, text, size, mode) for size in batches)
    except Exception:
        # The user's function may reject these batch sizes, such as an odd one. If it
        # raises, nothing is proven.
        return False
    kinds = small.arguments.types
    for kind in kinds:
        if kind.has_batch and (not kind.has_rows or kind.shape.count(BATCH_DIM) > 1):
            return False
    states_of: dict[ValueSource, State] = {
        (OUTSIDE, i): BATCH if kind.has_rows else None for i, kind in enumerate(kinds)
    }
    try:
        _check_regions(small.cut, large.cut, states_of, ProofContext(batches))
    except NotProvenError:
        return False
    return True


def _check_regions(
    small: Cut, large: Cut, states_of: dict[ValueSource, State], proof: ProofContext
) -> None:
    """Require that the results of each region either all have rows, or all have none."""
    require(len(small.regions) == len(large.regions))
    for at, (one, other) in enumerate(zip(small.regions, large.regions, strict=True)):
        require(one.operands == other.operands)
        states = [states_of[source] for source in one.operands]
        states += [None] * len(one.random)
        results = _jaxpr_states(one.closed, other.closed, states, proof)
        require(all(x == BATCH for x in results) or not any(results))
        states_of.update({(at, k): state for k, state in enumerate(results)})


def _jaxpr_states(
    small: Any, large: Any, states: Sequence[State], proof: ProofContext
) -> list[State]:
    """Return the states of the results of a jaxpr or closed jaxpr."""
    (one, consts), (other, other_consts) = open_jaxpr(small), open_jaxpr(large)
    require(is_same(consts, other_consts))
    require(len(one.eqns) == len(other.eqns))
    require(len(one.invars) == len(other.invars) == len(states))
    inputs = zip(one.invars, other.invars, strict=True)
    states_of: PairStates = dict(zip(inputs, states, strict=True))
    states_of |= dict.fromkeys(zip(one.constvars, other.constvars, strict=True))
    for pair in zip(one.eqns, other.eqns, strict=True):
        operands = _operand_states(pair[0].invars, pair[1].invars, states_of)
        results = _result_states(EquationPair(*pair, operands, proof))
        outvars = zip(pair[0].outvars, pair[1].outvars, strict=True)
        states_of.update(zip(outvars, results, strict=True))
    return _operand_states(one.outvars, other.outvars, states_of)


def _operand_states(
    small: Sequence[Any], large: Sequence[Any], states_of: PairStates
) -> list[State]:
    """Return the states of variables and literals; require that both batches agree."""
    require(len(small) == len(large))
    states: list[State] = []
    for pair in zip(small, large, strict=True):
        literals = [atom.val for atom in pair if isinstance(atom, core.Literal)]
        if literals:
            # A literal that differs between the batches was computed from their sizes.
            require(len(literals) == 2 and is_same(*literals))
            states.append(None)
        else:
            require(pair in states_of)
            states.append(states_of[pair])
    return states


def _result_states(eqns: EquationPair) -> list[State]:
    require(eqns.small.primitive.name == eqns.large.primitive.name)
    match eqns.name:
        case "scan":
            states = _scan(eqns)
        case "while":
            states = _while(eqns)
        case "cond":
            states = _cond(eqns)
        case "custom_jvp_call":
            if not eqns.proof.in_custom_rule:
                _check_custom_rule(eqns)
            states = _inner_states(eqns, "call_jaxpr", eqns.states)
        case name if name in CALLS:
            states = _inner_states(eqns, "jaxpr", eqns.states)
        case "optimization_barrier":
            states = eqns.states
        case _:
            return primitive_states(eqns)
    require(eqns.states_of_results() == states)
    return states


def _inner_states(eqns: EquationPair, key: str, states: Sequence[State]) -> list[State]:
    """Return the states of the results of the jaxpr in the parameter `key`."""
    small, large = eqns.small.params[key], eqns.large.params[key]
    return _jaxpr_states(small, large, states, eqns.proof)


def _scan(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("jaxpr",))
    fixed, count = scan_counts(eqns.small.params)
    sliced = fixed + count
    carried = eqns.states[fixed:sliced]
    slices = [x and x.with_axis(x.axis - 1) for x in eqns.states[sliced:]]
    require(all(x is None or x.axis >= 0 for x in slices))
    results = _inner_states(eqns, "jaxpr", [*eqns.states[:sliced], *slices])
    require(results[:count] == carried)
    return [*carried, *(x and x.with_axis(x.axis + 1) for x in results[count:])]


def _while(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("cond_jaxpr", "body_jaxpr"))
    conds, consts = (eqns.small.params[f"{key}_nconsts"] for key in ("cond", "body"))
    carried = eqns.states[conds + consts :]
    # The condition must not depend on the batch: all rows run the same iterations.
    inputs = [*eqns.states[:conds], *carried]
    require(_inner_states(eqns, "cond_jaxpr", inputs) == [None])
    require(_inner_states(eqns, "body_jaxpr", eqns.states[conds:]) == carried)
    return carried


def _cond(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("branches",))
    index, *states = eqns.states
    require(index is None)
    small, large = eqns.small.params["branches"], eqns.large.params["branches"]
    require(len(small) == len(large))
    pairs = zip(small, large, strict=True)
    first, *others = (_jaxpr_states(*pair, states, eqns.proof) for pair in pairs)
    require(all(branch == first for branch in others))
    return first


def _check_custom_rule(eqns: EquationPair) -> None:
    """Require that a custom derivative works row by row; the backward is its transpose."""
    small, large = _derivative_jaxpr(eqns.small), _derivative_jaxpr(eqns.large)
    operands = zip(eqns.small.invars, eqns.states, strict=True)
    tangents = [state for atom, state in operands if _is_float(atom.aval)]
    inner = replace(eqns.proof, in_custom_rule=True)
    _jaxpr_states(small, large, [*eqns.states, *tangents], inner)


def _derivative_jaxpr(eqn: Any) -> Any:
    """Return the jaxpr of an equation and its derivative by the float operands."""
    invars: list[Any] = [core.Var(atom.aval) for atom in eqn.invars]
    outvars: list[Any] = [core.Var(var.aval) for var in eqn.outvars]
    debug = eqn.params["call_jaxpr"].jaxpr.debug_info
    debug = debug._replace(arg_names=None, result_paths=None)
    alone = eqn.replace(invars=invars, outvars=outvars)
    jaxpr = core.Jaxpr([], invars, outvars, [alone], eqn.effects, debug)
    function = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))

    def both(operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
        of_floats = iter(tangents)
        every = [
            next(of_floats) if _is_float(x) else np.zeros(x.shape, jax.dtypes.float0)
            for x in operands
        ]
        results, dots = jax.jvp(function, operands, every)
        pairs = zip(outvars, dots, strict=True)
        return results, [dot for out, dot in pairs if _is_float(out.aval)]

    avals = [var.aval for var in invars]
    try:
        return jax.make_jaxpr(both)(avals, list(filter(_is_float, avals)))
    except Exception as error:
        # The derivative is user code. If it raises, nothing is proven here, and the
        # backward pass reports the error.
        raise NotProvenError from error


def _is_float(value: Any) -> bool:
    return bool(jax.numpy.issubdtype(value.dtype, jax.numpy.inexact))
