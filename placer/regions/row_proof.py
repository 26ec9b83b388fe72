"""The proof that a traced function works row by row.

Row i of each result then depends on row i of the inputs alone, whatever the number of
rows: the batch can be split over places, and gradients of parameters are sums over rows.
It is an abstract interpretation of the jaxpr of two batches at once, equation by
equation (`placer.regions.row_rules`): of each value it finds the axis along which the
rows of the batch lie, or that it does not depend on the batch at all. What the rules do
not know, and what depends on the number of rows, is not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from placer.regions.batch_types import PROOF
from placer.regions.cut import OUTSIDE, Cut
from placer.regions.flatten import CALLS, scan_counts
from placer.regions.function import Traced
from placer.regions.row_rules import RULES
from placer.regions.row_states import (
    BATCH,
    Equations,
    NotProvenError,
    State,
    need,
    same,
)
from placer.types import BATCH as BATCH_DIM


@dataclass(frozen=True, slots=True)
class Proof:
    """Two batches for which a function is traced, and whether what is looked at is a rule
    of the user's for a derivative."""

    batches: tuple[int, int]
    inner: bool = False


def is_by_rows(trace: Callable[[int], Traced], rows: int = PROOF[1]) -> bool:
    """Whether it is proven of a function, which `trace` traces for a number of rows: for
    `rows` of them, and for `PROOF[0]`."""
    try:
        small, large = trace(PROOF[0]), trace(rows)
    except Exception:
        # It is the user's, and takes other batches: of one that it does not take, as an
        # odd one, it proves nothing.
        return False
    kinds = small.arguments.types
    for kind in kinds:
        if kind.has_batch and (not kind.has_rows or kind.shape.count(BATCH_DIM) > 1):
            return False
    inputs = [BATCH if kind.has_rows else None for kind in kinds]
    return _by_rows(small.cut, large.cut, inputs, Proof((PROOF[0], rows)))


def _by_rows(small: Cut, large: Cut, inputs: Sequence[State], proof: Proof) -> bool:
    """Whether each region of a function gives rows of the batch that it takes, or nothing
    of the batch. `inputs` says of each input of the function what is known of it."""
    known = {(OUTSIDE, i): state for i, state in enumerate(inputs)}
    try:
        need(len(small.regions) == len(large.regions))
        for at, pair in enumerate(zip(small.regions, large.regions, strict=True)):
            states = [known[source] for source in pair[0].takes]
            found = _closed(pair[0].closed, pair[1].closed, states, proof=proof)
            need(all(x == BATCH for x in found) or all(x is None for x in found))
            known.update({(at, k): state for k, state in enumerate(found)})
    except NotProvenError:
        return False
    return True


def _closed(
    small: Any, large: Any, states: Sequence[State], *, proof: Proof
) -> list[State]:
    """The states of the results of a closed jaxpr, or of one without constants."""
    consts, others = getattr(small, "consts", ()), getattr(large, "consts", ())
    need(same(tuple(consts), tuple(others)))
    one, other = getattr(small, "jaxpr", small), getattr(large, "jaxpr", large)
    need(len(one.eqns) == len(other.eqns))
    found: dict[Any, State] = dict.fromkeys(one.constvars)
    need(len(one.invars) == len(states) and len(one.outvars) == len(other.outvars))
    found.update(zip(one.invars, states, strict=True))
    for pair in zip(one.eqns, other.eqns, strict=True):
        eqns = Equations(
            *pair, [_state(*x, found) for x in _operands(*pair)], proof.batches
        )
        found.update(zip(pair[0].outvars, _results(eqns, proof=proof), strict=True))
    results = zip(one.outvars, other.outvars, strict=True)
    return [_state(a, b, found) for a, b in results]


def _operands(small: Any, large: Any) -> Sequence[tuple[Any, Any]]:
    need(len(small.invars) == len(large.invars))
    return list(zip(small.invars, large.invars, strict=True))


def _state(small: Any, large: Any, found: dict[Any, State]) -> State:
    if isinstance(small, core.Literal):
        # A number that is another one for another batch is its size, or made of it.
        need(isinstance(large, core.Literal) and same(small.val, large.val))
        return None
    return found[small]


def _results(eqns: Equations, *, proof: Proof) -> list[State]:
    """The states of the results of an equation."""
    need(eqns.small.primitive.name == eqns.large.primitive.name)
    match eqns.name:
        case "scan":
            found = _scan(eqns, proof=proof)
        case "while":
            found = _while(eqns, proof=proof)
        case "cond":
            found = _cond(eqns, proof=proof)
        case "custom_jvp_call":
            if not proof.inner:
                _check_rule(eqns, proof)
            found = _call(eqns, "call_jaxpr", proof=proof)
        case name if name in CALLS:
            found = _call(eqns, "jaxpr", proof=proof)
        case name:
            need(name in RULES)
            found = RULES[name](eqns)
    for i, state in enumerate(found):
        need(eqns.made(i) == state)
    return found


def _call(eqns: Equations, key: str, *, proof: Proof) -> list[State]:
    small, large = eqns.small.params[key], eqns.large.params[key]
    return _closed(small, large, eqns.states, proof=proof)


def _scan(eqns: Equations, *, proof: Proof) -> list[State]:
    eqns.need_same(but=("jaxpr",))
    small, large = eqns.small.params, eqns.large.params
    fixed, count = scan_counts(small)
    each = fixed + count
    carried = eqns.states[fixed:each]
    slices = [None if x is None else x.moved(x.axis - 1) for x in eqns.states[each:]]
    need(all(x is None or x.axis >= 0 for x in slices))
    states = [*eqns.states[:each], *slices]
    found = _closed(small["jaxpr"], large["jaxpr"], states, proof=proof)
    need(found[: len(carried)] == carried)
    rest = found[len(carried) :]
    return [*carried, *(None if x is None else x.moved(x.axis + 1) for x in rest)]


def _while(eqns: Equations, *, proof: Proof) -> list[State]:
    small, large = eqns.small.params, eqns.large.params
    eqns.need_same(but=("cond_jaxpr", "body_jaxpr"))
    conds, consts = small["cond_nconsts"], small["body_nconsts"]
    states = eqns.states
    carried = states[conds + consts :]
    # Each row goes on as long as the others.
    ways = "cond_jaxpr", [*states[:conds], *carried]
    need(_closed(small[ways[0]], large[ways[0]], ways[1], proof=proof) == [None])
    ways = "body_jaxpr", [*states[conds : conds + consts], *carried]
    need(_closed(small[ways[0]], large[ways[0]], ways[1], proof=proof) == carried)
    return carried


def _cond(eqns: Equations, *, proof: Proof) -> list[State]:
    eqns.need_same(but=("branches",))
    which, *states = eqns.states
    need(which is None)
    small, large = eqns.small.params["branches"], eqns.large.params["branches"]
    need(len(small) == len(large))
    pairs = zip(small, large, strict=True)
    ways = [_closed(*pair, states, proof=proof) for pair in pairs]
    need(all(way == ways[0] for way in ways))
    return ways[0]


def _check_rule(eqns: Equations, proof: Proof) -> None:
    """A rule of the user's for the derivative has to work row by row, too: the backward
    is its transpose."""
    small, large = _derivative(eqns.small), _derivative(eqns.large)
    tangents = [
        state
        for atom, state in zip(eqns.small.invars, eqns.states, strict=True)
        if _is_float(atom)
    ]
    _closed(small, large, [*eqns.states, *tangents], proof=replace(proof, inner=True))


def _derivative(eqn: Any) -> Any:
    """The jaxpr of an equation with its derivative: operands, then tangents of those that
    are floats."""
    found: list[Any] = [core.Var(atom.aval) for atom in eqn.invars]
    outs: list[Any] = [core.Var(var.aval) for var in eqn.outvars]
    debug = eqn.params["call_jaxpr"].jaxpr.debug_info
    debug = debug._replace(arg_names=None, result_paths=None)
    alone = eqn.replace(invars=found, outvars=outs)
    jaxpr = core.Jaxpr([], found, outs, [alone], eqn.effects, debug)
    function = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))
    at = [i for i, atom in enumerate(eqn.invars) if _is_float(atom)]

    def both(operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def of_floats(*floats: Any) -> Any:
            every = list(operands)
            for i, x in zip(at, floats, strict=True):
                every[i] = x
            results = zip(outs, function(*every), strict=True)
            return [y for out, y in results if _is_float(out)]

        return jax.jvp(of_floats, [operands[i] for i in at], tangents)

    struct: Any = jax.ShapeDtypeStruct  # which has no types
    structs = [struct(v.aval.shape, v.aval.dtype) for v in found]
    try:
        return jax.make_jaxpr(both)(structs, [structs[i] for i in at])
    except Exception as error:
        # The rule is the user's. Where it fails it proves nothing; a backward tells it.
        raise NotProvenError from error


def _is_float(atom: Any) -> bool:
    return bool(jax.numpy.issubdtype(atom.aval.dtype, jax.numpy.inexact))
