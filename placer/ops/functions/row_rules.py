"""The rules of primitives for the proof of `placer.ops.functions.row_proof`.

The rows of a result are along the only axis whose size changes with the batch. Many
primitives with such an axis in the result cannot mix rows. Each of the other
primitives has a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from jax.extend import core
from jax.sharding import Mesh

from placer.ops.functions.row_draws import KEY_TYPE, ROW_DRAWS
from placer.ops.functions.row_states import (
    EquationPair,
    NotProvenError,
    Rows,
    State,
    is_same,
    require,
)

Condition = Callable[[EquationPair, Rows], None]
"""Raises NotProvenError if an equation may mix rows.

Some operands of the equation have rows. So has each result, with the given state.
"""


def primitive_states(eqns: EquationPair) -> list[State]:
    """Return the states of the results of an equation.

    Raises NotProvenError if the equation may mix rows.
    """
    name, results = eqns.name, eqns.states_of_results()
    if name not in _BY_SHAPE and name not in _CONDITIONS:
        _check_without_rule(eqns)
        return results
    sizes = _SIZE_PARAMS.get(name, ())
    if name in ROW_DRAWS and eqns.states[0] is None:
        return _draw(eqns, results)
    if not any(eqns.states):
        eqns.require_same_params(but=sizes if name in _REPEATS else ())
        if name == "iota" and (result := results[0]) is not None:
            require(result.axis != eqns.small.params["dimension"])
        return results
    eqns.require_same_params(but=sizes)
    for result in results:
        if result is None:
            raise NotProvenError
        if name in _CONDITIONS:
            _CONDITIONS[name](eqns, result)
    return results


def _draw(eqns: EquationPair, results: list[State]) -> list[State]:
    """Return the states of a draw with one key for all rows.

    `placer.ops.functions.row_draws` draws the numbers of each row with its own key.
    """
    keys = eqns.small.invars[0].aval
    eqns.require_same_params(but=("shape",))
    for result in results:
        if result is not None:
            require(result.axis >= keys.ndim and str(keys.dtype) == KEY_TYPE)
    require(all(x is None or x == results[0] for x in eqns.states[1:]))
    return results


def _check_without_rule(eqns: EquationPair) -> None:
    """Require that an equation does not depend on the batch, so that it needs no rule."""
    require(not any(eqns.states) and not any(eqns.states_of_results()))
    require(eqns.small.params.keys() == eqns.large.params.keys())
    _check_parts([eqns.small], [eqns.large])


def _check_parts(small: Sequence[Any], large: Sequence[Any]) -> None:
    """Require that equations are the same, without effects or a custom backward."""
    require(len(small) == len(large))
    for one, other in zip(small, large, strict=True):
        # A custom backward may compute something else for a part of a gradient.
        require(not one.effects and not one.primitive.name.startswith("custom_vjp"))
        require(one.primitive is other.primitive)
        require(one.params.keys() == other.params.keys())
        for key, parameter in one.params.items():
            _check_same(parameter, other.params[key])


_JAXPRS = core.Jaxpr | core.ClosedJaxpr
"""One class since JAX 0.12."""


def _check_same(one: Any, other: Any) -> None:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        require(len(one) == len(other))
        for pair in zip(one, other, strict=True):
            _check_same(*pair)
    elif isinstance(one, _JAXPRS) and isinstance(other, _JAXPRS):
        constants = (tuple(getattr(each, "consts", ())) for each in (one, other))
        require(is_same(*constants))
        require(str(one) == str(other))  # with variables named in their order
        _check_parts(one.eqns, other.eqns)
    else:
        # a mesh is callable because it is a decorator
        require(not callable(one) or isinstance(one, type | Mesh))
        require(is_same(one, other))


def _not_along(key: str) -> Condition:
    """Return the condition that an equation's axes do not include the axis of rows."""

    def check(eqns: EquationPair, result: Rows) -> None:
        axes = eqns.small.params[key]
        axes = axes if isinstance(axes, tuple | list) else [axes]
        rank = len(eqns.shape())
        require(all(axis % rank != result.axis for axis in axes))

    return check


def _keep_all_rows(eqns: EquationPair, result: Rows) -> None:
    require(result == eqns.only_state)


def _reshape(eqns: EquationPair, result: Rows) -> None:
    """Require that the axes before the rows keep their number of elements."""
    require(eqns.small.params["dimensions"] is None)
    old, new = eqns.shape(), eqns.small.outvars[0].aval.shape
    require(prod(old[: eqns.only_state.axis]) == prod(new[: result.axis]))


def _slice(eqns: EquationPair, result: Rows) -> None:
    _keep_all_rows(eqns, result)
    strides = eqns.small.params["strides"]
    require(eqns.small.params["start_indices"][result.axis] == 0)
    require(strides is None or strides[result.axis] == 1)


def _dynamic_update_slice(eqns: EquationPair, result: Rows) -> None:
    whole, part, *starts = eqns.states
    # The update has all rows, so its start along their axis is clamped to 0.
    require(whole == part and not any(starts))


def _pad(eqns: EquationPair, result: Rows) -> None:
    padding = eqns.small.params["padding_config"]
    require(tuple(padding[eqns.only_state.axis]) == (0, 0, 0))


def _conv(eqns: EquationPair, result: Rows) -> None:
    numbers = eqns.small.params["dimension_numbers"]
    require(eqns.small.params["batch_group_count"] == 1)
    require(eqns.only_state.axis == numbers.lhs_spec[0])


def _fft(eqns: EquationPair, result: Rows) -> None:
    """Require that the transformed axes, the last ones, do not include the rows."""
    _keep_all_rows(eqns, result)
    transformed = len(eqns.small.params["fft_lengths"])
    require(result.axis < len(eqns.shape()) - transformed)


def _reduce_window(eqns: EquationPair, result: Rows) -> None:
    axis, params = eqns.only_state.axis, eqns.small.params
    ones = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    require(all(params[key][axis] == 1 for key in ones))
    require(tuple(params["padding"][axis]) == (0, 0))


def _gather(eqns: EquationPair, result: Rows) -> None:
    """Require that each index reads its own row, or all rows read the same indices."""
    operand, indices = eqns.states
    numbers = eqns.small.params["dimension_numbers"]
    read = eqns.state_of_param("slice_sizes")
    if indices is None:
        assert operand is not None
        require(read == operand and operand.axis not in numbers.start_index_map)
    else:
        require(read is None)
        pairs = zip(
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
            strict=True,
        )
        require(operand is None or (operand.axis, indices.axis) in pairs)


def _scatter(eqns: EquationPair, result: Rows) -> None:
    """Require that the update is written at the same indices in each row."""
    # An update function may depend on all rows.
    require(eqns.name != "scatter" or eqns.small.params["update_jaxpr"] is None)
    operand, indices, update = eqns.states
    require(operand is not None and indices is None)
    assert operand is not None
    numbers = eqns.small.params["dimension_numbers"]
    removed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    require(operand.axis not in numbers.scatter_dims_to_operand_dims)
    window = [axis for axis in range(len(eqns.shape())) if axis not in removed]
    require(operand.axis in window)
    axis = int(numbers.update_window_dims[window.index(operand.axis)])
    require(update == operand.with_axis(axis))


_ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan",
    "atan2", "atanh", "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "clz",
    "complex", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh",
    "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "igamma", "igamma_grad_a", "igammac", "imag",
    "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt",
    "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "or", "polygamma",
    "population_count", "pow", "random_fold_in", "random_gamma_grad", "real", "reduce_precision",
    "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
))  # fmt: skip

_SCATTERS = (
    "scatter", "scatter_add", "scatter-add", "scatter_max", "scatter_min", "scatter_mul",
)  # fmt: skip

_MOVES = frozenset((
    "argmax", "argmin", "broadcast_in_dim", "dot_general", "iota", "random_bits",
    "random_seed", "random_split", "random_unwrap", "random_wrap", "reduce_and",
    "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor", "squeeze", "stack", "transpose", "unstack",
))  # fmt: skip
"""Primitives that move or copy whole axes, or combine elements along a removed axis."""

_BY_SHAPE = _ELEMENTWISE | _MOVES | ROW_DRAWS
"""Primitives that never mix rows if their results have rows."""

_CONDITIONS: Mapping[str, Condition] = {
    "bitcast_convert_type": _keep_all_rows,
    "concatenate": _not_along("dimension"),
    "conv_general_dilated": _conv,
    **dict.fromkeys(
        ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "split", "top_k"),
        _not_along("axis"),
    ),
    "dynamic_slice": _keep_all_rows,
    "dynamic_update_slice": _dynamic_update_slice,
    "fft": _fft,
    "gather": _gather,
    "pad": _pad,
    **dict.fromkeys(
        ("reduce_window_max", "reduce_window_min", "reduce_window_sum"), _reduce_window
    ),
    "reshape": _reshape,
    "rev": _not_along("dimensions"),
    **dict.fromkeys(_SCATTERS, _scatter),
    "slice": _slice,
    "sort": _not_along("dimension"),
    "tile": _keep_all_rows,
}

_SIZE_PARAMS: Mapping[str, Sequence[str]] = {
    "broadcast_in_dim": ("shape",),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("slice_sizes",),
    "iota": ("shape",),
    "reshape": ("new_sizes",),
    **dict.fromkeys(_SCATTERS, ("update_jaxpr", "update_consts")),
    "slice": ("limit_indices",),
    "tile": ("reps",),
}
"""Parameters that may differ between the batches.

They are sizes of the result, which its state covers, and functions, which cannot be
compared.
"""

_REPEATS = ("broadcast_in_dim", "iota", "tile")
"""Primitives that may repeat values without rows for each row."""
