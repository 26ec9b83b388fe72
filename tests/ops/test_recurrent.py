"""Recurrent layers: lengths of rows, both directions, extremes, and their cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_programs import backward_program, count_products, find_equations
from support.op_use import Use

KINDS = {"simple_rnn": 1, "gru": 3, "lstm": 4}
STATES = {"simple_rnn": 1, "gru": 1, "lstm": 2}
ROWS, TIME, WIDTH, SIZE = 4, 5, 3, 2
LENGTHS = np.array([5, 0, 2, 9], np.int32)


def weights(kind, width=WIDTH, size=SIZE, seed=0):
    rng = np.random.default_rng(seed)
    gates = KINDS[kind] * size
    shapes = [(width, gates), (size, gates), (gates,)]
    shapes += [(size,)] if kind == "gru" else []
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def states(kind, seed=1):
    rng = np.random.default_rng(seed)
    shape = (STATES[kind], ROWS, SIZE)
    return list(rng.normal(size=shape).astype(np.float32))


X = np.random.default_rng(2).normal(size=(ROWS, TIME, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_ends_at_its_length(kind):
    given = states(kind)
    sequence, *last = getattr(ops, kind)(X, *given, LENGTHS, *weights(kind))
    for row, length in enumerate(np.minimum(LENGTHS, TIME)):
        before = [s[row : row + 1] for s in given]
        alone, *expected = (
            getattr(ops, kind)(X[row : row + 1, :length], *before, *weights(kind))
            if length
            else (np.zeros((1, 0, SIZE)), *before)
        )
        np.testing.assert_allclose(sequence[row, :length], alone[0], rtol=1e-5)
        for mine, others in zip(last, expected, strict=True):
            np.testing.assert_allclose(mine[row], others[0], rtol=1e-5)
        rest = np.broadcast_to(last[0][row], (TIME - length, SIZE))
        np.testing.assert_array_equal(sequence[row, length:], rest)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_after_the_length_do_not_matter(kind):
    behind = np.arange(TIME) >= LENGTHS[:, None]
    other = np.where(behind[..., None], np.float32(7), X)
    for reverse in (False, True):
        one, two = (
            getattr(ops, kind)(x, LENGTHS, *weights(kind), reverse=reverse)
            for x in (X, other)
        )
        for mine, others in zip(one, two, strict=True):
            np.testing.assert_array_equal(mine, others)


@pytest.mark.parametrize("kind", KINDS)
def test_reverse_equals_forward_on_the_reversed_sequence(kind):
    there, *last = getattr(ops, kind)(X[:, ::-1], *weights(kind))
    back, *first = getattr(ops, kind)(X, *weights(kind), reverse=True)
    np.testing.assert_array_equal(back, there[:, ::-1])
    for mine, others in zip(first, last, strict=True):
        np.testing.assert_array_equal(mine, others)
    np.testing.assert_array_equal(first[0], back[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_states_can_be_passed_between_parts_of_a_sequence(kind):
    whole = getattr(ops, kind)(X, *weights(kind))
    one, *between = getattr(ops, kind)(X[:, :2], *weights(kind))
    two, *last = getattr(ops, kind)(X[:, 2:], *between, *weights(kind))
    np.testing.assert_allclose(np.concatenate([one, two], 1), whole[0], rtol=1e-5)
    for mine, others in zip(last, whole[1:], strict=True):
        np.testing.assert_allclose(mine, others, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_saturated_gates_have_finite_gradients(kind):
    extreme = X * np.float32(1e6)
    layer = getattr(ops, kind)
    out, residuals = layer.forward(extreme, *weights(kind))
    operands = [extreme, *weights(kind)]
    saved = [operands[i] for i in residuals.saves]
    gradients = layer.backward(residuals, *saved, *map(jnp.ones_like, out))
    for y in (*out, *gradients):
        assert np.isfinite(y).all()


def test_an_lstm_with_open_forget_gates_keeps_its_cell():
    w, u, _ = weights("lstm")
    h, c = states("lstm")
    *_, cell = ops.lstm(X * 0, h, c, w * 0, u * 0, forget_bias=100.0)
    np.testing.assert_array_equal(cell, c)


def use(kind, time, rows=16, width=48, size=32):
    gates = KINDS[kind] * size
    given = [f"float32[{rows}, {size}]"] * STATES[kind]
    shapes = [(rows, time, width), (width, gates), (size, gates)]
    x, *kernels = (f"float32[{', '.join(map(str, shape))}]" for shape in shapes)
    return Use(kind, (x, *given, *kernels))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward_are_a_scan_with_one_product_each(kind):
    layer = use(kind, time=4)
    program = jax.make_jaxpr(backward_program(layer))(*layer.arrays()).jaxpr
    scans = list(find_equations(program, "scan"))
    assert len(scans) == 2
    assert [count_products(scan.params["jaxpr"].jaxpr) for scan in scans] == [1, 1]
    assert count_products(program) == 2 + 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both", [False, True])
def test_declared_flops_equal_those_of_xla(kind, both):
    """XLA counts the body of a loop once.

    The cost outside of loops is proportional to the number of steps; the rest is the
    cost of the body, which runs once for each step.
    """

    def count_flops(time: int) -> float:
        layer = use(kind, time)
        function = getattr(ops, kind)
        program = backward_program(layer) if both else lambda *xs: function(*xs)
        compiled = jax.jit(program).lower(*layer.arrays()).compile()
        return compiled.cost_analysis()["flops"]

    few, many = count_flops(8), count_flops(16)
    outside = (many - few) / 8
    body = few - 8 * outside
    layer = use(kind, 16)
    declared = layer.declaration.flops(layer.types, layer.all_attrs)
    if both:
        wrt = range(len(layer.types))
        declared += layer.declaration.grad_flops(layer.types, layer.all_attrs, wrt)
    assert 16 * (outside + body) == pytest.approx(declared, rel=0.05)
