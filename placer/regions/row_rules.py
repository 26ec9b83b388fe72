"""What each primitive does with the rows of a batch, for `placer.regions.row_proof`.

A rule gives the states of an equation's results, and raises `NotProvenError` where it cannot
tell, or where rows are mixed. Shapes of results are checked by who calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from placer.regions.row_states import Equations, State, need, same

Rule = Callable[[Equations], list[State]]


def _elementwise(eqns: Equations) -> list[State]:
    """Operands of one rank, or scalars; those of one row go with each."""
    eqns.need_same()
    rows = {state for state in eqns.states if state is not None}
    if not rows:
        return eqns.all(None)
    need(len(rows) == 1)
    (state,) = rows
    rank = len(eqns.shapes_out()[0])
    for i, each in enumerate(eqns.states):
        if each is None and (shape := eqns.shape(i)):
            need(len(shape) == rank and shape[state.axis] == 1)
    return eqns.all(state)


def _fixed(rule: Rule) -> Rule:
    """A rule for equations that take something of the batch."""

    def both(eqns: Equations) -> list[State]:
        if any(eqns.states):
            return rule(eqns)
        eqns.need_same()
        return eqns.all(None)

    return both


def _broadcast_in_dim(eqns: Equations) -> list[State]:
    eqns.need_same(but=("shape",))
    need(len(eqns.states) == 1)
    found, (state,) = eqns.sizes("shape"), eqns.states
    if state is not None:
        axis = int(eqns.small.params["broadcast_dimensions"][state.axis])
        need(found == state.moved(axis))
    return [found]


def _iota(eqns: Equations) -> list[State]:
    eqns.need_same(but=("shape",))
    found = eqns.sizes("shape")
    need(found is None or found.axis != eqns.small.params["dimension"])
    return [found]


def _reshape(eqns: Equations) -> list[State]:
    eqns.need_same(but=("new_sizes",))
    need(len(eqns.states) == 1 and eqns.small.params["dimensions"] is None)
    (state,), found = eqns.states, eqns.sizes("new_sizes")
    if state is None or found is None:
        need(state is found)
        return [None]
    old, new = eqns.shape(), eqns.shapes_out()[0]
    need(prod(old[: state.axis]) == prod(new[: found.axis]))
    return [found]


def _reduce(eqns: Equations) -> list[State]:
    eqns.need_same()
    state, axes = eqns.only, eqns.small.params["axes"]
    need(state.axis not in axes)
    return eqns.all(state.moved(state.axis - sum(axis < state.axis for axis in axes)))


def _along(key: str) -> Rule:
    """What works along one axis, which is another than that of rows."""

    def rule(eqns: Equations) -> list[State]:
        eqns.need_same()
        states = set(eqns.states)
        need(len(states) == 1)
        (state,) = states
        assert state is not None
        axis = eqns.small.params[key]
        need(axis % len(eqns.shape()) != state.axis)
        return eqns.all(state)

    return rule


def _stack(eqns: Equations) -> list[State]:
    eqns.need_same()
    states = set(eqns.states)
    need(len(states) == 1)
    (state,) = states
    assert state is not None
    return [state.moved(state.axis + (eqns.small.params["axis"] <= state.axis))]


def _unstack(eqns: Equations) -> list[State]:
    eqns.need_same()
    axis, state = eqns.small.params["axis"], eqns.only
    need(axis != state.axis)
    return eqns.all(state.moved(state.axis - (axis < state.axis)))


def _tile(eqns: Equations) -> list[State]:
    eqns.need_same(but=("reps",))
    repeats, others = eqns.small.params["reps"], eqns.large.params["reps"]
    need(len(repeats) == len(eqns.shape()))
    (state,) = eqns.states
    if state is None:  # each row has as many of it
        return [eqns.made()]
    need(same(repeats, others) and repeats[state.axis] == 1)
    return [state]


def _each(eqns: Equations) -> list[State]:
    """What gives its operands."""
    return list(eqns.states)


def _top_k(eqns: Equations) -> list[State]:
    eqns.need_same()
    rank = len(eqns.shape())
    need(eqns.only.axis != eqns.small.params.get("axis", rank - 1) % rank)
    return eqns.all(eqns.only)


def _transpose(eqns: Equations) -> list[State]:
    eqns.need_same()
    order = [int(axis) for axis in eqns.small.params["permutation"]]
    return [eqns.only.moved(order.index(eqns.only.axis))]


def _squeeze(eqns: Equations) -> list[State]:
    eqns.need_same()
    axes, state = eqns.small.params["dimensions"], eqns.only
    need(state.axis not in axes)
    return [state.moved(state.axis - sum(axis < state.axis for axis in axes))]


def _rev(eqns: Equations) -> list[State]:
    eqns.need_same()
    need(eqns.only.axis not in eqns.small.params["dimensions"])
    return [eqns.only]


def _slice(eqns: Equations) -> list[State]:
    eqns.need_same(but=("limit_indices",))
    state, params = eqns.only, eqns.small.params
    need(eqns.sizes("limit_indices") == state)
    need(params["start_indices"][state.axis] == 0)
    need(params["strides"] is None or params["strides"][state.axis] == 1)
    return [state]


def _dynamic_slice(eqns: Equations) -> list[State]:
    eqns.need_same(but=("slice_sizes",))
    need(eqns.sizes("slice_sizes") == eqns.only)
    return [eqns.only]


def _dynamic_update_slice(eqns: Equations) -> list[State]:
    eqns.need_same()
    whole, part, *starts = eqns.states
    need(whole == part and not any(starts))  # of all rows, so that it begins at 0
    return [whole]


def _pad(eqns: Equations) -> list[State]:
    eqns.need_same()
    need(tuple(eqns.small.params["padding_config"][eqns.only.axis]) == (0, 0, 0))
    return [eqns.only]


def _dot_general(eqns: Equations) -> list[State]:
    eqns.need_same()
    contracted, batch = eqns.small.params["dimension_numbers"]
    left, right = eqns.states
    if left is not None and right is not None:
        need(left.each == right.each)
        both = left.axis, right.axis
        pairs = list(zip(batch[0], batch[1], strict=True))
        need(both in pairs)
        return [left.moved(pairs.index(both))]
    side = 0 if left is not None else 1
    state = eqns.states[side]
    assert state is not None
    free = _others(len(eqns.shape(side)), (*contracted[side], *batch[side]))
    need(state.axis in free)
    ahead = len(batch[0])
    if side == 1:
        ahead += len(_others(len(eqns.shape(0)), (*contracted[0], *batch[0])))
    return [state.moved(ahead + free.index(state.axis))]


def _others(rank: int, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(rank) if axis not in axes]


def _conv(eqns: Equations) -> list[State]:
    eqns.need_same()
    numbers = eqns.small.params["dimension_numbers"]
    need(eqns.small.params["batch_group_count"] == 1)
    need(eqns.only.axis == numbers.lhs_spec[0])
    return [eqns.only.moved(numbers.out_spec[0])]


def _reduce_window(eqns: Equations) -> list[State]:
    eqns.need_same()
    state, params = eqns.only, eqns.small.params
    for key, value in (
        ("window_dimensions", 1),
        ("window_strides", 1),
        ("base_dilation", 1),
        ("window_dilation", 1),
    ):
        need(params[key][state.axis] == value)
    need(tuple(params["padding"][state.axis]) == (0, 0))
    return eqns.all(state)


def _gather(eqns: Equations) -> list[State]:
    eqns.need_same(but=("slice_sizes",))
    of, at = eqns.states
    numbers = eqns.small.params["dimension_numbers"]
    rank = len(eqns.shapes_out()[0])
    taken = _others(rank, [int(axis) for axis in numbers.offset_dims])
    batching = tuple(numbers.operand_batching_dims)
    if at is None:
        assert of is not None
        need(eqns.sizes("slice_sizes") == of)
        need(of.axis not in (*numbers.start_index_map, *batching))
        kept = _others(len(eqns.shape()), (*numbers.collapsed_slice_dims, *batching))
        need(of.axis in kept)
        return [of.moved(int(numbers.offset_dims[kept.index(of.axis)]))]
    need(eqns.sizes("slice_sizes") is None)
    need(
        at.axis < len(eqns.shape(1)) - 1
    )  # the last is that of the numbers of an index
    pairs = list(zip(batching, numbers.start_indices_batching_dims, strict=True))
    if of is None:
        need(at.axis not in numbers.start_indices_batching_dims)
    else:
        need(of.each == at.each and (of.axis, at.axis) in pairs)
    return [at.moved(taken[at.axis])]


def _scatter(eqns: Equations) -> list[State]:
    """Written at the same indices in each row, as it is or by the sum, the product or
    the like that the name says: a function of the user's may depend on all rows."""
    need(eqns.name != "scatter" or eqns.small.params["update_jaxpr"] is None)
    eqns.need_same(but=("update_jaxpr", "update_consts"))
    into, at, what = eqns.states
    need(into is not None and at is None and what is not None)
    assert into is not None
    assert what is not None
    numbers = eqns.small.params["dimension_numbers"]
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    need(into.axis not in numbers.scatter_dims_to_operand_dims)
    window = _others(len(eqns.shape()), gone)
    need(into.axis in window)
    axis = int(numbers.update_window_dims[window.index(into.axis)])
    need(what == into.moved(axis))
    return [into]


def _random(eqns: Equations) -> list[State]:
    """Of a key for each row."""
    eqns.need_same()
    keys = len(eqns.shape()) - (eqns.name == "random_wrap")
    need(eqns.only.axis < keys)
    return eqns.all(eqns.only)


_ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan",
    "atan2", "atanh", "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "clz",
    "complex", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh",
    "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "igamma", "igamma_grad_a", "igammac", "imag",
    "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt",
    "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "or", "polygamma",
    "population_count", "pow", "random_fold_in", "real", "reduce_precision",
    "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
)  # fmt: skip

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
    "reshape": _reshape,
    **dict.fromkeys(
        (
            "argmax",
            "argmin",
            "reduce_and",
            "reduce_max",
            "reduce_min",
            "reduce_or",
            "reduce_prod",
            "reduce_sum",
            "reduce_xor",
        ),
        _fixed(_reduce),
    ),
    **dict.fromkeys(
        ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "split"),
        _fixed(_along("axis")),
    ),
    **dict.fromkeys(("concatenate", "sort"), _fixed(_along("dimension"))),
    **dict.fromkeys(
        ("reduce_window_max", "reduce_window_min", "reduce_window_sum"),
        _fixed(_reduce_window),
    ),
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter-add", "scatter_max", "scatter_min",
         "scatter_mul"),
        _fixed(_scatter),
    ),
    **dict.fromkeys(
        ("random_bits", "random_seed", "random_split", "random_unwrap", "random_wrap"),
        _fixed(_random),
    ),
    "optimization_barrier": _each,
    "stack": _fixed(_stack),
    "tile": _tile,
    "top_k": _fixed(_top_k),
    "unstack": _fixed(_unstack),
    "transpose": _fixed(_transpose),
    "squeeze": _fixed(_squeeze),
    "rev": _fixed(_rev),
    "slice": _fixed(_slice),
    "dynamic_slice": _fixed(_dynamic_slice),
    "dynamic_update_slice": _fixed(_dynamic_update_slice),
    "pad": _fixed(_pad),
    "dot_general": _fixed(_dot_general),
    "conv_general_dilated": _fixed(_conv),
    "gather": _fixed(_gather),
}  # fmt: skip
