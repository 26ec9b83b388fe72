"""Split rows, run each part, put together as the rule says: what the whole gives.

In float64, with an empty part among them. And partial values pass through the operands
in which an op declares to be linear.
"""

from functools import cache
from itertools import pairwise

import jax
import numpy as np
import pytest
from support.op_cases import ALL, BATCH, Use, mostly_slow

from placer import ops

USES = [use.of("float64") for use in ALL]
SPLIT = [use for use in USES if any(t.has_rows for t in use.types)]
CUTS = (0, 4, 4, BATCH)
PARTS = 3


def rule(use: Use) -> str:
    return use.declaration.batch(use.types, use.full)


def is_linear(use: Use) -> bool:
    """Whether a sum passes through any of its operands."""
    return bool(use.declaration.linear(use.types, use.full))


@cache
def program(text: str):
    """The compiled op of the use that reads `text`."""
    use = next(use for use in USES if str(use) == text)
    function = getattr(ops, use.kind)
    return jax.jit(lambda *xs: function(*xs, **use.keywords()))


def apply(use: Use, arrays) -> tuple[np.ndarray, ...]:
    """The op's results."""
    with jax.enable_x64(True):
        out = program(str(use))(*arrays)
    return tuple(map(np.asarray, out if isinstance(out, tuple) else (out,)))


def parts_of(use: Use, arrays) -> list[tuple[np.ndarray, ...]]:
    """What the op gives for each part of the rows; one part is empty."""
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
def test_parts_make_the_whole(use):
    arrays = use.arrays()
    parts = parts_of(use, arrays)
    whole = apply(use, arrays)
    for i, (kind, wanted) in enumerate(zip(use.results, whole, strict=True)):
        mine = [part[i] for part in parts]
        split = rule(use) == "rows" and kind.has_rows
        together = np.concatenate(mine) if split else sum(mine)
        np.testing.assert_allclose(together, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("use", mostly_slow(u for u in SPLIT if rule(u) == "whole"))
def test_an_op_that_is_whole_could_not_be_split(use):
    arrays = use.arrays()
    wholes = apply(use, arrays)
    try:
        all_parts = parts_of(use, arrays)
    except (TypeError, ValueError):  # the shapes of the parts do not fit the op
        return
    assert not all(
        _makes(whole, [part[i] for part in all_parts]) for i, whole in enumerate(wholes)
    )


def _makes(whole: np.ndarray, parts: list[np.ndarray]) -> bool:
    """Whether the parts, one after the other or added up, are the whole."""
    joinable = whole.ndim and len({p.shape[1:] for p in parts}) == 1
    addable = len({p.shape for p in parts}) == 1
    candidates = [np.concatenate(parts)] if joinable else []
    candidates += [sum(parts)] if addable else []
    return any(
        together.shape == whole.shape and np.allclose(together, whole)
        for together in candidates
    )


@pytest.mark.parametrize("use", mostly_slow(filter(is_linear, USES)))
def test_sums_pass_through_linear_operands(use):
    rng = np.random.default_rng(1)
    arrays = use.arrays()
    whole = apply(use, arrays)
    for group in use.declaration.linear(use.types, use.full):
        first, second = list(arrays), list(arrays)
        for position, index in enumerate(group):
            if position == 0:
                first[index] = rng.normal(size=arrays[index].shape)
                second[index] = arrays[index] - first[index]
            else:  # replicated beside a partial one: it counts on the first place only
                second[index] = np.zeros_like(arrays[index])
        for a, b, wanted in zip(
            apply(use, first), apply(use, second), whole, strict=True
        ):
            np.testing.assert_allclose(a + b, wanted, rtol=1e-9, atol=1e-12)


def test_an_op_that_is_not_linear_does_not_say_so():
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
                assert use.declaration.linear(use.types, use.full) == ()
    scale = Use("scale", ("float32[4]",), {"factor": 2.0, "bias": 1.0})
    assert scale.declaration.linear(scale.types, scale.full) == ()
    fc = Use("fc", ("float32[2, 4]", "float32[4, 3]"), {"activation": "relu"})
    assert fc.declaration.linear(fc.types, fc.full) == ()


@pytest.mark.parametrize(
    ("use", "wanted"),
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
def test_the_rule_of_known_uses(use, wanted):
    assert rule(use) == wanted


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


def test_pad_rows_refuses_rows_that_are_not_the_part_s():
    with pytest.raises(ValueError, match=r"parts \(0,\) of 2 of 7 rows have 4, not 3"):
        ops.pad_rows(np.zeros((3, 2), np.float32), own=(0,), parts=2, count=7)
