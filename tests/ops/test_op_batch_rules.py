"""Batch rules: results for parts of the rows, combined, equal the result for all rows.

In float64, with an empty part. Partial values may be passed as operands in which an op
is declared linear.
"""

from functools import cache
from itertools import pairwise

import jax
import numpy as np
import pytest
from support.op_cases import ALL, BATCH, Use, mostly_slow

from placer import ops

USES = [use.with_dtype("float64") for use in ALL]
SPLIT = [use for use in USES if any(t.has_rows for t in use.types)]
CUTS = (0, 4, 4, BATCH)
PARTS = 3


def rule(use: Use) -> str:
    return use.declaration.batch_rule(use.types, use.all_attrs)


def is_linear(use: Use) -> bool:
    """Whether the op is declared linear in any of its operands."""
    return bool(use.declaration.linear(use.types, use.all_attrs))


@cache
def program(text: str):
    """Return the compiled op of the use whose text is `text`."""
    use = next(use for use in USES if str(use) == text)
    function = getattr(ops, use.kind)
    return jax.jit(lambda *xs: function(*xs, **use.keywords()))


def apply(use: Use, arrays) -> tuple[np.ndarray, ...]:
    """Return the op's results."""
    with jax.enable_x64(True):
        out = program(str(use))(*arrays)
    return tuple(map(np.asarray, out if isinstance(out, tuple) else (out,)))


def parts_of(use: Use, arrays) -> list[tuple[np.ndarray, ...]]:
    """Return the op's results for each part of the rows; one part is empty."""
    return [
        apply(
            use,
            [
                x[low:high] if t.has_rows else x
                for t, x in zip(use.types, arrays, strict=True)
            ],
        )
        for low, high in pairwise(CUTS)
    ]


@pytest.mark.parametrize("use", mostly_slow(u for u in SPLIT if rule(u) != "whole"))
def test_results_of_parts_combine_to_the_result_of_all_rows(use):
    arrays = use.arrays()
    parts = parts_of(use, arrays)
    whole = apply(use, arrays)
    for i, (kind, expected) in enumerate(zip(use.results, whole, strict=True)):
        mine = [part[i] for part in parts]
        split = rule(use) == "rows" and kind.has_rows
        combined = np.concatenate(mine) if split else sum(mine)
        np.testing.assert_allclose(combined, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("use", mostly_slow(u for u in SPLIT if rule(u) == "whole"))
def test_a_whole_op_cannot_be_split(use):
    arrays = use.arrays()
    wholes = apply(use, arrays)
    try:
        all_parts = parts_of(use, arrays)
    except (TypeError, ValueError):  # the shapes of the parts do not fit the op
        return
    assert not all(
        _combine_to(whole, [part[i] for part in all_parts])
        for i, whole in enumerate(wholes)
    )


def _combine_to(whole: np.ndarray, parts: list[np.ndarray]) -> bool:
    """Whether concatenating or adding the parts gives the whole."""
    joinable = whole.ndim and len({p.shape[1:] for p in parts}) == 1
    addable = len({p.shape for p in parts}) == 1
    candidates = [np.concatenate(parts)] if joinable else []
    candidates += [sum(parts)] if addable else []
    return any(
        combined.shape == whole.shape and np.allclose(combined, whole)
        for combined in candidates
    )


@pytest.mark.parametrize("use", mostly_slow(filter(is_linear, USES)))
def test_an_op_is_linear_in_the_declared_operands(use):
    rng = np.random.default_rng(1)
    arrays = use.arrays()
    whole = apply(use, arrays)
    for group in use.declaration.linear(use.types, use.all_attrs):
        first, second = list(arrays), list(arrays)
        for position, index in enumerate(group):
            if position == 0:
                first[index] = rng.normal(size=arrays[index].shape)
                second[index] = arrays[index] - first[index]
            else:  # a replicated value must be added to the partial one only once
                second[index] = np.zeros_like(arrays[index])
        for a, b, expected in zip(
            apply(use, first), apply(use, second), whole, strict=True
        ):
            np.testing.assert_allclose(a + b, expected, rtol=1e-9, atol=1e-12)


def test_nonlinear_ops_are_not_declared_linear():
    for kind in (
        "relu",
        "tanh",
        "sigmoid",
        "softmax",
        "sqrt",
        "softmax_cross_entropy",
        "sigmoid_cross_entropy",
        "mean_squared_error",
        "accuracy",
        "sum_of_squares",
        "clip_scale",
    ):
        for use in USES:
            if use.kind == kind:
                assert use.declaration.linear(use.types, use.all_attrs) == ()
    scale = Use("scale", ("float32[4]",), {"factor": 2.0, "bias": 1.0})
    assert scale.declaration.linear(scale.types, scale.all_attrs) == ()
    fc = Use("fc", ("float32[2, 4]", "float32[4, 3]"), {"activation": "relu"})
    assert fc.declaration.linear(fc.types, fc.all_attrs) == ()


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (Use("fc", ("float32[batch, 4]", "float32[4, 3]")), "rows"),
        (Use("matmul", ("float32[batch, 4]", "float32[4, 3]")), "rows"),
        (
            Use("matmul", ("float32[batch, 4]",) * 2, {"transpose_a": True}),
            "reduce",
        ),
        (Use("matmul", ("float32[batch, 4]",) * 2, {"transpose_b": True}), "whole"),
        (Use("softmax", ("float32[batch, 4]",), {"axis": -2}), "whole"),
        (Use("reshape", ("float32[batch, 6]",), {"shape": [6, -1]}), "whole"),
        (Use("reduce_mean", ("float32[batch, 4]",), {"axis": 1}), "rows"),
        (Use("reduce_mean", ("float32[batch, 4]",)), "reduce"),
        (Use("add", ("float32[batch, 1]", "float32[batch]")), "whole"),
        (Use("mean_squared_error", ("float32[batch]",) * 2), "reduce"),
        (
            Use("mean_squared_error", ("float32[batch]",) * 2, {"reduce": "none"}),
            "rows",
        ),
    ],
    ids=str,
)
def test_batch_rules_of_some_uses(use, expected):
    assert rule(use) == expected


@pytest.mark.parametrize("rows", [0, 2, 7])
def test_split_rows_and_pad_rows_are_inverse(rows):
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    parts = [ops.split_rows(x, own=(i,), parts=PARTS) for i in range(PARTS)]
    sizes = [len(p) for p in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    padded = [
        ops.pad_rows(p, own=(i,), parts=PARTS, count=rows) for i, p in enumerate(parts)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), x)
    np.testing.assert_array_equal(sum(map(np.asarray, padded)), x)


def test_pad_rows_raises_for_another_number_of_rows():
    with pytest.raises(ValueError, match=r"parts \(0,\) of 2 of 7 rows have 4, not 3"):
        ops.pad_rows(np.zeros((3, 2), np.float32), own=(0,), parts=2, count=7)
