"""einsum: its errors, its cost, and the order of its products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.op_use import BATCH, Use
from support.op_uses.product import DIFFERENTIABLE

from placer import ops
from placer.place.types import TensorType

ROWS = "float32[batch, 4]"


def einsum(equation: str, *operands: str) -> Use:
    return Use("einsum", operands, {"equation": equation})


@pytest.mark.parametrize(
    ("equation", "operands", "expected"),
    [
        ("bi,ij->bj", (ROWS, "float32[4, 3]"), "rows"),
        ("bi,bi->b", (ROWS, ROWS), "rows"),
        ("bi,bj->ij", (ROWS, ROWS), "reduce"),
        ("bi,j->ij", (ROWS, "float32[3]"), "reduce"),
        ("bi,ci->bc", (ROWS, ROWS), "whole"),
        ("bi,ij->jb", (ROWS, "float32[4, 3]"), "whole"),
        ("bi,ib->b", (ROWS, "float32[4, batch]"), "whole"),
        ("bc,ci->bi", ("float32[batch, batch]", ROWS), "whole"),
        ("bc->c", ("float32[batch, batch]",), "reduce"),
    ],
)
def test_the_batch_rule_follows_the_letter_of_the_rows(equation, operands, expected):
    use = einsum(equation, *operands)
    assert use.declaration.batch_rule(use.types, use.all_attrs) == expected


def count_flops(fn, *args) -> float:
    return jax.jit(fn).lower(*args).compile().cost_analysis()["flops"]


PRODUCTS = ["bi,ij->bj", "bqhd,bkhd->bhqk", "bi,bi->bi", "bi,bj->ij", "bi,ci->bc",
            "bi,ijo,bj->bo", "bi,bj,bk,ijkm->m"]  # fmt: skip


@pytest.mark.parametrize("equation", PRODUCTS)
def test_declared_flops_equal_those_of_xla(equation):
    use = next(u for u in DIFFERENTIABLE if u.attrs["equation"] == equation)
    scale = 4 if len(use.types) == 4 else 16
    types = [
        TensorType(t.dtype, tuple(scale * d for d in t.sizes(BATCH))) for t in use.types
    ]
    (out,) = use.declaration.infer(types, use.all_attrs)
    given = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in (out, *types)]
    saves = use.declaration.saves(types, use.all_attrs)

    def both_ways(dy, *xs):
        out, residuals = ops.einsum.forward(*xs, **use.attrs)
        saved = [xs[i] for i in saves]
        return out, ops.einsum.backward(residuals, *saved, dy)

    forward = use.declaration.flops(types, use.all_attrs)
    backward = use.declaration.grad_flops(types, use.all_attrs, range(len(types)))
    alone = count_flops(lambda dy, *xs: ops.einsum(*xs, **use.attrs), *given)
    assert alone == pytest.approx(forward, rel=0.02)
    assert count_flops(both_ways, *given) == pytest.approx(forward + backward, rel=0.02)


def test_operands_are_multiplied_from_left_to_right():
    # (1e30 · 1e30) overflows, 1e-30 · (1e30 · 1e-30) does not
    big, small = jnp.float32([1e30]), jnp.float32([1e-30])
    assert ops.einsum(big, small, big, equation="i,i,i->i") == jnp.float32(1e30)
    assert ops.einsum(big, big, small, equation="i,i,i->i") == jnp.inf


def test_a_partial_product_is_saved_for_the_backward():
    use = einsum("bi,ijo,bj->bo", ROWS, "float32[4, 3, 2]", "float32[batch, 3]")
    xs = use.arrays()
    _, residuals = ops.einsum.forward(*xs, **use.attrs)
    (between,) = residuals.extra
    np.testing.assert_allclose(
        between, np.einsum("bi,ijo->bjo", xs[0], xs[1]), rtol=1e-5
    )


def test_an_operand_that_is_summed_first_is_saved_as_the_sum():
    use = einsum("bij,k->bk", "float32[batch, 2, 3]", "float32[4]")
    assert use.declaration.saves(use.types, use.all_attrs) == (1,)
    (saved,) = use.declaration.residuals(use.types, use.all_attrs)
    assert str(saved) == "float32[batch]"
