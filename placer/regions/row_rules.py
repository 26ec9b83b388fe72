"""The rules of primitives for the proof of `placer.regions.row_proof`.

A rule returns the states of an equation's results. It raises `NotProvenError` if the
equation mixes rows, or if it cannot tell. The caller checks the shapes of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from placer.regions.row_states import EquationPair, State, is_same, require

Rule = Callable[[EquationPair], list[State]]


def _elementwise(eqns: EquationPair) -> list[State]:
    """Operands have the same rank or are scalars. Operands of one row are broadcast."""
    eqns.require_same_params()
    rows = {state for state in eqns.states if state is not None}
    if not rows:
        return eqns.for_all_results(None)
    require(len(rows) == 1)
    (state,) = rows
    rank = len(eqns.result_shapes()[0])
    for i, operand in enumerate(eqns.states):
        if operand is None and (shape := eqns.shape(i)):
            require(len(shape) == rank and shape[state.axis] == 1)
    return eqns.for_all_results(state)


def _constant_or(rule: Rule) -> Rule:
    """Return a rule that applies `rule` only if an operand depends on the batch."""

    def checked(eqns: EquationPair) -> list[State]:
        if any(eqns.states):
            return rule(eqns)
        eqns.require_same_params()
        return eqns.for_all_results(None)

    return checked


def _broadcast_in_dim(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("shape",))
    require(len(eqns.states) == 1)
    result, (state,) = eqns.state_of_param("shape"), eqns.states
    if state is not None:
        axis = int(eqns.small.params["broadcast_dimensions"][state.axis])
        require(result == state.with_axis(axis))
    return [result]


def _iota(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("shape",))
    result = eqns.state_of_param("shape")
    require(result is None or result.axis != eqns.small.params["dimension"])
    return [result]


def _reshape(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("new_sizes",))
    require(len(eqns.states) == 1 and eqns.small.params["dimensions"] is None)
    (state,), result = eqns.states, eqns.state_of_param("new_sizes")
    if state is None or result is None:
        require(state is result)
        return [None]
    old, new = eqns.shape(), eqns.result_shapes()[0]
    require(prod(old[: state.axis]) == prod(new[: result.axis]))
    return [result]


def _reduce(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    state, axes = eqns.only_state, eqns.small.params["axes"]
    require(state.axis not in axes)
    return eqns.for_all_results(
        state.with_axis(state.axis - sum(axis < state.axis for axis in axes))
    )


def _along(key: str) -> Rule:
    """Return the rule of primitives that work along the axis in the parameter `key`.

    It must not be the axis of rows. All operands must have the same state.
    """

    def rule(eqns: EquationPair) -> list[State]:
        eqns.require_same_params()
        states = set(eqns.states)
        require(len(states) == 1)
        (state,) = states
        assert state is not None
        axis = eqns.small.params[key]
        require(axis % len(eqns.shape()) != state.axis)
        return eqns.for_all_results(state)

    return rule


def _stack(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    states = set(eqns.states)
    require(len(states) == 1)
    (state,) = states
    assert state is not None
    return [state.with_axis(state.axis + (eqns.small.params["axis"] <= state.axis))]


def _unstack(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    axis, state = eqns.small.params["axis"], eqns.only_state
    require(axis != state.axis)
    return eqns.for_all_results(state.with_axis(state.axis - (axis < state.axis)))


def _tile(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("reps",))
    repeats, others = eqns.small.params["reps"], eqns.large.params["reps"]
    require(len(repeats) == len(eqns.shape()))
    (state,) = eqns.states
    if state is None:  # the repeated value is the same for all rows
        return [eqns.state_of_result()]
    require(is_same(repeats, others) and repeats[state.axis] == 1)
    return [state]


def _identity(eqns: EquationPair) -> list[State]:
    """The results are the operands."""
    return list(eqns.states)


def _top_k(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    rank = len(eqns.shape())
    require(eqns.only_state.axis != eqns.small.params.get("axis", rank - 1) % rank)
    return eqns.for_all_results(eqns.only_state)


def _transpose(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    order = [int(axis) for axis in eqns.small.params["permutation"]]
    return [eqns.only_state.with_axis(order.index(eqns.only_state.axis))]


def _squeeze(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    axes, state = eqns.small.params["dimensions"], eqns.only_state
    require(state.axis not in axes)
    return [state.with_axis(state.axis - sum(axis < state.axis for axis in axes))]


def _rev(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    require(eqns.only_state.axis not in eqns.small.params["dimensions"])
    return [eqns.only_state]


def _slice(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("limit_indices",))
    state, params = eqns.only_state, eqns.small.params
    require(eqns.state_of_param("limit_indices") == state)
    require(params["start_indices"][state.axis] == 0)
    require(params["strides"] is None or params["strides"][state.axis] == 1)
    return [state]


def _dynamic_slice(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("slice_sizes",))
    require(eqns.state_of_param("slice_sizes") == eqns.only_state)
    return [eqns.only_state]


def _dynamic_update_slice(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    whole, part, *starts = eqns.states
    # The update has all rows, so its start along their axis is clamped to 0.
    require(whole == part and not any(starts))
    return [whole]


def _pad(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    require(
        tuple(eqns.small.params["padding_config"][eqns.only_state.axis]) == (0, 0, 0)
    )
    return [eqns.only_state]


def _dot_general(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    contracted, batch = eqns.small.params["dimension_numbers"]
    left, right = eqns.states
    if left is not None and right is not None:
        require(left.per_row == right.per_row)
        both = left.axis, right.axis
        pairs = list(zip(batch[0], batch[1], strict=True))
        require(both in pairs)
        return [left.with_axis(pairs.index(both))]
    side = 0 if left is not None else 1
    state = eqns.states[side]
    assert state is not None
    free = _other_axes(len(eqns.shape(side)), (*contracted[side], *batch[side]))
    require(state.axis in free)
    ahead = len(batch[0])
    if side == 1:
        ahead += len(_other_axes(len(eqns.shape(0)), (*contracted[0], *batch[0])))
    return [state.with_axis(ahead + free.index(state.axis))]


def _other_axes(rank: int, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(rank) if axis not in axes]


def _conv(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    numbers = eqns.small.params["dimension_numbers"]
    require(eqns.small.params["batch_group_count"] == 1)
    require(eqns.only_state.axis == numbers.lhs_spec[0])
    return [eqns.only_state.with_axis(numbers.out_spec[0])]


def _reduce_window(eqns: EquationPair) -> list[State]:
    eqns.require_same_params()
    state, params = eqns.only_state, eqns.small.params
    for key, value in (
        ("window_dimensions", 1),
        ("window_strides", 1),
        ("base_dilation", 1),
        ("window_dilation", 1),
    ):
        require(params[key][state.axis] == value)
    require(tuple(params["padding"][state.axis]) == (0, 0))
    return eqns.for_all_results(state)


def _gather(eqns: EquationPair) -> list[State]:
    eqns.require_same_params(but=("slice_sizes",))
    operand, indices = eqns.states
    numbers = eqns.small.params["dimension_numbers"]
    rank = len(eqns.result_shapes()[0])
    batch_dims = _other_axes(rank, [int(axis) for axis in numbers.offset_dims])
    batching = tuple(numbers.operand_batching_dims)
    if indices is None:
        assert operand is not None
        require(eqns.state_of_param("slice_sizes") == operand)
        require(operand.axis not in (*numbers.start_index_map, *batching))
        window_dims = _other_axes(
            len(eqns.shape()), (*numbers.collapsed_slice_dims, *batching)
        )
        require(operand.axis in window_dims)
        return [
            operand.with_axis(int(numbers.offset_dims[window_dims.index(operand.axis)]))
        ]
    require(eqns.state_of_param("slice_sizes") is None)
    require(
        indices.axis < len(eqns.shape(1)) - 1
    )  # the last axis is that of the components of an index
    pairs = list(zip(batching, numbers.start_indices_batching_dims, strict=True))
    if operand is None:
        require(indices.axis not in numbers.start_indices_batching_dims)
    else:
        require(
            operand.per_row == indices.per_row and (operand.axis, indices.axis) in pairs
        )
    return [indices.with_axis(batch_dims[indices.axis])]


def _scatter(eqns: EquationPair) -> list[State]:
    """The update is written at the same indices in each row.

    A `scatter` with an update function is not proven: it may depend on all rows.
    """
    require(eqns.name != "scatter" or eqns.small.params["update_jaxpr"] is None)
    eqns.require_same_params(but=("update_jaxpr", "update_consts"))
    operand, indices, update = eqns.states
    require(operand is not None and indices is None and update is not None)
    assert operand is not None
    assert update is not None
    numbers = eqns.small.params["dimension_numbers"]
    removed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    require(operand.axis not in numbers.scatter_dims_to_operand_dims)
    window = _other_axes(len(eqns.shape()), removed)
    require(operand.axis in window)
    axis = int(numbers.update_window_dims[window.index(operand.axis)])
    require(update == operand.with_axis(axis))
    return [operand]


def _random(eqns: EquationPair) -> list[State]:
    """There is one key for each row."""
    eqns.require_same_params()
    keys = len(eqns.shape()) - (eqns.name == "random_wrap")
    require(eqns.only_state.axis < keys)
    return eqns.for_all_results(eqns.only_state)


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
        _constant_or(_reduce),
    ),
    **dict.fromkeys(
        ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "split"),
        _constant_or(_along("axis")),
    ),
    **dict.fromkeys(("concatenate", "sort"), _constant_or(_along("dimension"))),
    **dict.fromkeys(
        ("reduce_window_max", "reduce_window_min", "reduce_window_sum"),
        _constant_or(_reduce_window),
    ),
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter-add", "scatter_max", "scatter_min",
         "scatter_mul"),
        _constant_or(_scatter),
    ),
    **dict.fromkeys(
        ("random_bits", "random_seed", "random_split", "random_unwrap", "random_wrap"),
        _constant_or(_random),
    ),
    "optimization_barrier": _identity,
    "stack": _constant_or(_stack),
    "tile": _tile,
    "top_k": _constant_or(_top_k),
    "unstack": _constant_or(_unstack),
    "transpose": _constant_or(_transpose),
    "squeeze": _constant_or(_squeeze),
    "rev": _constant_or(_rev),
    "slice": _constant_or(_slice),
    "dynamic_slice": _constant_or(_dynamic_slice),
    "dynamic_update_slice": _constant_or(_dynamic_update_slice),
    "pad": _constant_or(_pad),
    "dot_general": _constant_or(_dot_general),
    "conv_general_dilated": _constant_or(_conv),
    "gather": _constant_or(_gather),
}  # fmt: skip
