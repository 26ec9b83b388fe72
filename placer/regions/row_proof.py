"""Prove that a traced function works row by row.

Row i of each result then depends on row i of the inputs only, for any number of rows:
the batch can be split over places, and gradients of parameters are sums over rows.

The proof is an abstract interpretation of the jaxprs for two batch sizes at once,
equation by equation (`placer.regions.row_rules`). For each value it finds the axis with
the rows of the batch, or that the value does not depend on the batch. Primitives
without a rule, and equations that depend on the number of rows, are not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from placer.regions.batch_types import PROOF_BATCHES
from placer.regions.cut import OUTSIDE, Cut
from placer.regions.flatten import CALLS, scan_counts
from placer.regions.function import TracedFunction
from placer.regions.row_rules import RULES
from placer.regions.row_states import (
    BATCH,
    EquationPair,
    NotProvenError,
    State,
    is_same,
    require,
)
from placer.types import BATCH as BATCH_DIM


@dataclass(frozen=True, slots=True)
class ProofContext:
    """The two batch sizes of a proof, and whether it is inside a custom derivative."""

    batches: tuple[int, int]
    in_custom_rule: bool = False


def is_by_rows(
    trace: Callable[[int], TracedFunction], rows: int = PROOF_BATCHES[1]
) -> bool:
    """Whether there is a proof that a function works row by row.

    `trace` traces the function for a number of rows. The proof compares the traces for
    `PROOF_BATCHES[0]` rows and for `rows` rows.
    """
    try:
        small, large = trace(PROOF_BATCHES[0]), trace(rows)
    except Exception:
        # The user's function need not accept these batch sizes, such as an odd one.
        # If it raises, nothing is proven.
        return False
    kinds = small.arguments.types
    for kind in kinds:
        if kind.has_batch and (not kind.has_rows or kind.shape.count(BATCH_DIM) > 1):
            return False
    inputs = [BATCH if kind.has_rows else None for kind in kinds]
    return _regions_by_rows(
        small.cut, large.cut, inputs, ProofContext((PROOF_BATCHES[0], rows))
    )


def _regions_by_rows(
    small: Cut, large: Cut, inputs: Sequence[State], proof: ProofContext
) -> bool:
    """Whether the results of each region all have rows of the batch, or all have none.

    `inputs` are the states of the function's inputs.
    """
    states_of = {(OUTSIDE, i): state for i, state in enumerate(inputs)}
    try:
        require(len(small.regions) == len(large.regions))
        for at, pair in enumerate(zip(small.regions, large.regions, strict=True)):
            states = [states_of[source] for source in pair[0].operands]
            results = _jaxpr_states(pair[0].closed, pair[1].closed, states, proof=proof)
            require(all(x == BATCH for x in results) or all(x is None for x in results))
            states_of.update({(at, k): state for k, state in enumerate(results)})
    except NotProvenError:
        return False
    return True


def _jaxpr_states(
    small: Any, large: Any, states: Sequence[State], *, proof: ProofContext
) -> list[State]:
    """Return the states of the results of a jaxpr, which may be closed."""
    consts, other_consts = getattr(small, "consts", ()), getattr(large, "consts", ())
    require(is_same(tuple(consts), tuple(other_consts)))
    one, other = getattr(small, "jaxpr", small), getattr(large, "jaxpr", large)
    require(len(one.eqns) == len(other.eqns))
    states_of: dict[Any, State] = dict.fromkeys(one.constvars)
    require(len(one.invars) == len(states) and len(one.outvars) == len(other.outvars))
    states_of.update(zip(one.invars, states, strict=True))
    for pair in zip(one.eqns, other.eqns, strict=True):
        eqns = EquationPair(
            *pair,
            [_operand_state(*x, states_of) for x in _operand_pairs(*pair)],
            proof.batches,
        )
        states_of.update(
            zip(pair[0].outvars, _result_states(eqns, proof=proof), strict=True)
        )
    results = zip(one.outvars, other.outvars, strict=True)
    return [_operand_state(a, b, states_of) for a, b in results]


def _operand_pairs(small: Any, large: Any) -> Sequence[tuple[Any, Any]]:
    require(len(small.invars) == len(large.invars))
    return list(zip(small.invars, large.invars, strict=True))


def _operand_state(small: Any, large: Any, states: dict[Any, State]) -> State:
    if isinstance(small, core.Literal):
        # A literal that differs between the batches is computed from the batch size.
        require(isinstance(large, core.Literal) and is_same(small.val, large.val))
        return None
    return states[small]


def _result_states(eqns: EquationPair, *, proof: ProofContext) -> list[State]:
    """Return the states of the results of an equation."""
    require(eqns.small.primitive.name == eqns.large.primitive.name)
    match eqns.name:
        case "scan":
            states = _scan(eqns, proof=proof)
        case "while":
            states = _while(eqns, proof=proof)
        case "cond":
            states = _cond(eqns, proof=proof)
        case "custom_jvp_call":
            if not proof.in_custom_rule:
                _check_custom_rule(eqns, proof)
            states = _call(eqns, "call_jaxpr", proof=proof)
        case name if name in CALLS:
            states = _call(eqns, "jaxpr", proof=proof)
        case name:
            require(name in RULES)
            states = RULES[name](eqns)
    for i, state in enumerate(states):
        require(eqns.state_of_result(i) == state)
    return states


def _call(eqns: EquationPair, key: str, *, proof: ProofContext) -> list[State]:
    small, large = eqns.small.params[key], eqns.large.params[key]
    return _jaxpr_states(small, large, eqns.states, proof=proof)


def _scan(eqns: EquationPair, *, proof: ProofContext) -> list[State]:
    eqns.require_same_params(but=("jaxpr",))
    small, large = eqns.small.params, eqns.large.params
    fixed, count = scan_counts(small)
    sliced = fixed + count
    carried = eqns.states[fixed:sliced]
    slices = [
        None if x is None else x.with_axis(x.axis - 1) for x in eqns.states[sliced:]
    ]
    require(all(x is None or x.axis >= 0 for x in slices))
    states = [*eqns.states[:sliced], *slices]
    results = _jaxpr_states(small["jaxpr"], large["jaxpr"], states, proof=proof)
    require(results[: len(carried)] == carried)
    rest = results[len(carried) :]
    return [*carried, *(None if x is None else x.with_axis(x.axis + 1) for x in rest)]


def _while(eqns: EquationPair, *, proof: ProofContext) -> list[State]:
    small, large = eqns.small.params, eqns.large.params
    eqns.require_same_params(but=("cond_jaxpr", "body_jaxpr"))
    conds, consts = small["cond_nconsts"], small["body_nconsts"]
    states = eqns.states
    carried = states[conds + consts :]
    # The condition must not depend on the batch: all rows run equally many iterations.
    key, inputs = "cond_jaxpr", [*states[:conds], *carried]
    require(_jaxpr_states(small[key], large[key], inputs, proof=proof) == [None])
    key, inputs = "body_jaxpr", [*states[conds : conds + consts], *carried]
    require(_jaxpr_states(small[key], large[key], inputs, proof=proof) == carried)
    return carried


def _cond(eqns: EquationPair, *, proof: ProofContext) -> list[State]:
    eqns.require_same_params(but=("branches",))
    index, *states = eqns.states
    require(index is None)
    small, large = eqns.small.params["branches"], eqns.large.params["branches"]
    require(len(small) == len(large))
    pairs = zip(small, large, strict=True)
    branches = [_jaxpr_states(*pair, states, proof=proof) for pair in pairs]
    require(all(branch == branches[0] for branch in branches))
    return branches[0]


def _check_custom_rule(eqns: EquationPair, proof: ProofContext) -> None:
    """Require that a custom derivative works row by row: backward is its transpose."""
    small, large = _derivative_jaxpr(eqns.small), _derivative_jaxpr(eqns.large)
    tangents = [
        state
        for atom, state in zip(eqns.small.invars, eqns.states, strict=True)
        if _is_float(atom)
    ]
    inner = replace(proof, in_custom_rule=True)
    _jaxpr_states(small, large, [*eqns.states, *tangents], proof=inner)


def _derivative_jaxpr(eqn: Any) -> Any:
    """Return the jaxpr of an equation and its derivative.

    Its inputs are the operands, followed by the tangents of the float operands.
    """
    invars: list[Any] = [core.Var(atom.aval) for atom in eqn.invars]
    outvars: list[Any] = [core.Var(var.aval) for var in eqn.outvars]
    debug = eqn.params["call_jaxpr"].jaxpr.debug_info
    debug = debug._replace(arg_names=None, result_paths=None)
    alone = eqn.replace(invars=invars, outvars=outvars)
    jaxpr = core.Jaxpr([], invars, outvars, [alone], eqn.effects, debug)
    function = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))
    at = [i for i, atom in enumerate(eqn.invars) if _is_float(atom)]

    def both(operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def of_floats(*floats: Any) -> Any:
            every = list(operands)
            for i, x in zip(at, floats, strict=True):
                every[i] = x
            results = zip(outvars, function(*every), strict=True)
            return [y for out, y in results if _is_float(out)]

        return jax.jvp(of_floats, [operands[i] for i in at], tangents)

    struct: Any = jax.ShapeDtypeStruct  # it has no type hints
    structs = [struct(v.aval.shape, v.aval.dtype) for v in invars]
    try:
        return jax.make_jaxpr(both)(structs, [structs[i] for i in at])
    except Exception as error:
        # The derivative is user code. If it raises, nothing is proven here, and the
        # backward pass reports the error.
        raise NotProvenError from error


def _is_float(atom: Any) -> bool:
    return bool(jax.numpy.issubdtype(atom.aval.dtype, jax.numpy.inexact))
