"""The regions that the equations of a function are cut into."""

import jax
import jax.numpy as jnp
import pytest
from support.regions import check_same, region_lines

from placer import device_guard, place_guard
from placer.errors import PlacerError

W, X = "float32[4, 4]", "float32[batch, 4]"
FIRST, SECOND = "/node:worker:0", "/node:worker:1"


def two(w, v, x):
    with place_guard(FIRST):
        h = jnp.tanh(x @ w)
    with place_guard(SECOND):
        return jnp.sin(h @ v)


def test_consecutive_equations_of_one_place_are_a_region():
    assert region_lines(two, W, W, X) == [
        "/node:worker:0: dot_general tanh",
        "/node:worker:1: dot_general sin",
    ]
    check_same(two, W, W, X)


def test_gradients_are_placed_with_their_forward_equations():
    def step(w, v, x, y):
        def loss(w, v):
            return ((two(w, v, x) - y) ** 2).mean()

        return jax.value_and_grad(loss, (0, 1))(w, v)

    forward, both, backward = region_lines(step, W, W, X, X)
    assert forward.startswith("/node:worker:0: dot_general tanh")
    assert both.startswith("/node:worker:1: dot_general sin cos")
    assert both.count("dot_general") == 3  # forward, and by either operand
    assert backward.startswith("/node:worker:0: mul")
    assert backward.count("dot_general") == 1  # by the weight alone
    check_same(step, W, W, X, X)


def test_a_guard_inside_grad_merges_into_the_guard_around_it():
    def step(w, x):
        def loss(w):
            with place_guard("/gpu:1"):
                return jnp.sin(x @ w).sum()

        with place_guard("/node:worker"):
            return jax.grad(loss)(w)

    (line,) = region_lines(step, W, X)
    assert line.startswith("/node:worker /gpu:1: dot_general cos")


@pytest.mark.parametrize(
    "through",
    [
        jax.jit,
        jax.checkpoint,
        lambda fn: jax.jit(jax.jit(fn)),
        lambda fn: jax.vmap(fn, (None, None, 0)),
    ],
    ids=["jit", "checkpoint", "jit in jit", "vmap"],
)
@pytest.mark.parametrize("differentiated", [False, True])
def test_calls_with_guards_are_inlined(through, differentiated):
    def fn(w, v, x):
        inner = through(two)
        if differentiated:
            return jax.grad(lambda w, v: inner(w, v, x).sum(), (0, 1))(w, v)
        return inner(w, v, x)

    places = [text.partition(": ")[0] for text in region_lines(fn, W, W, X)]
    if differentiated:
        assert places[:2] == [FIRST, SECOND]
        assert set(places) == {FIRST, SECOND}
    else:
        assert places == [FIRST, SECOND]
    check_same(fn, W, W, X)


def test_a_call_without_guards_is_not_inlined():
    def fn(x):
        with place_guard(FIRST):
            return jax.jit(lambda y: jnp.sin(jnp.cos(y)))(x)

    assert region_lines(fn, X) == ["/node:worker:0: jit"]


def test_a_jaxpr_that_is_called_twice_is_inlined_twice():
    inner = jax.jit(two)

    def fn(w, v, x):
        return inner(w, v, inner(v, w, x))

    assert [text.partition(": ")[0] for text in region_lines(fn, W, W, X)] == [
        *(FIRST, SECOND, FIRST, SECOND)
    ]
    check_same(fn, W, W, X)


def test_a_jitted_function_that_ran_before_keeps_its_guards():
    inner = jax.jit(two)
    ones = jnp.ones((4, 4))
    inner(ones, ones, jnp.ones((6, 4)))  # JAX caches this trace
    assert len(region_lines(lambda w, v, x: inner(w, v, x), W, W, X)) == 2


def test_a_custom_vjp_keeps_its_guards():
    @jax.custom_vjp
    def fn(x):
        return jnp.sin(x)

    def forward(x):
        with place_guard(FIRST):
            return jnp.sin(x), x

    def backward(x, dy):
        with place_guard(SECOND):
            return (dy * jnp.cos(x),)

    fn.defvjp(forward, backward)

    def both(x):
        return jax.value_and_grad(lambda x: fn(x).sum())(x)

    lines = region_lines(both, X)
    assert lines[0].startswith("/node:worker:0: sin")
    assert lines[-1] == "/node:worker:1: broadcast_in_dim cos mul"
    check_same(both, X)


def test_an_equation_without_a_guard_follows_its_first_placed_operand():
    def fn(w, x):
        y = jnp.cos(x)  # no operand has a place
        with place_guard(SECOND):
            z = y @ w
        return x + z

    assert region_lines(fn, W, X) == ["-: cos", "/node:worker:1: dot_general add"]
    check_same(fn, W, X)


def test_an_equation_joins_an_earlier_region_if_possible():
    def fn(x, y):
        with place_guard(FIRST):
            a = jnp.sin(x)
        with place_guard(SECOND):
            b = jnp.cos(a)
        with place_guard(FIRST):
            c = jnp.tan(y)  # does not depend on the second
            return c + b  # depends on it

    assert region_lines(fn, X, X) == [
        "/node:worker:0: sin tan",
        "/node:worker:1: cos",
        "/node:worker:0: add",
    ]
    check_same(fn, X, X)


def test_guards_clear_open_guards():
    def fn(x):
        with place_guard("/node:worker/gpu:1"):
            with place_guard(None):
                a = jnp.sin(x)
            with device_guard(None):
                b = jnp.cos(a)
            with place_guard(""):
                return jnp.tan(b)

    assert region_lines(fn, X) == [
        "!clear: sin",
        "/node:worker/gpu:1 !device: cos",
        "/node:worker/gpu:1: tan",
    ]


def test_constants_are_copied_to_where_they_are_used():
    def fn(x):
        mask = jnp.arange(4) > 1
        with place_guard(FIRST):
            a = jnp.where(mask, x, 0.0)
        with place_guard(SECOND):
            return jnp.where(mask, 0.0, jnp.sin(a))

    first, second = region_lines(fn, X)
    assert "iota" in first
    assert "iota" in second
    check_same(fn, X)


def test_values_of_parameters_that_two_places_need_get_their_own_region():
    def fn(w, x):
        with place_guard(FIRST):
            half = 0.5 * w
            a = x @ half
        with place_guard(SECOND):
            return jnp.sin(a) @ half

    assert region_lines(fn, W, X) == [
        "/node:worker:0: mul",
        "/node:worker:0: dot_general",
        "/node:worker:1: sin dot_general",
    ]
    check_same(fn, W, X)


def test_unused_equations_are_dropped():
    def fn(x):
        with place_guard(FIRST):
            jnp.cos(x)
        with place_guard(SECOND):
            return jnp.sin(x)

    assert region_lines(fn, X) == ["/node:worker:1: sin"]


def test_a_function_can_close_over_arrays():
    array = jnp.arange(4.0)

    def fn(x):
        with place_guard(FIRST):
            return x * array

    assert len(region_lines(fn, X)) == 1
    check_same(fn, X)


def test_results_can_be_inputs_and_occur_twice():
    def fn(w, x):
        y = jnp.sin(x)
        return {"x": x, "w": w, "y": (y, y)}

    assert region_lines(fn, W, X) == ["-: sin"]
    check_same(fn, W, X)


def scanned(place):
    def fn(x):
        def body(carry, _):
            with place_guard(place):
                return jnp.sin(carry), None

        with place_guard("/node:worker:0/cpu"):
            return jax.lax.scan(body, x, length=3)[0]

    return fn


def test_a_loop_is_one_equation_if_its_guards_agree():
    assert region_lines(scanned("/node:worker"), X) == ["/node:worker:0/cpu: scan"]


def branched(x):
    def other(y):
        with place_guard(SECOND):
            return jnp.cos(y)

    return jax.lax.cond(x.sum() > 0, jnp.sin, other, x)


@jax.custom_jvp
def ruled(x):
    with place_guard(SECOND):
        return jnp.sin(x)


ruled.defjvp(lambda primals, tangents: (jnp.sin(*primals), tangents[0]))


def asked(x):
    with place_guard(lambda op: FIRST):
        return jnp.sin(x)


def ordered(x):
    jax.debug.print("{}", x.sum(), ordered=True)
    return x + 1


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            scanned("/cpu:1"),
            r"a guard inside 'scan' \(test_cut.py:\d+\) is /node:worker:0/cpu:1, but"
            r" the guard around it is /node:worker:0/cpu; it must run at one place",
        ),
        (branched, r"a guard inside 'cond' \(test_cut.py:\d+\) is /node:worker:1"),
        (
            lambda x: ruled(x),
            r"a guard inside 'custom_jvp_call' .*:\d+\) is /node:worker:1",
        ),
        (asked, r"a guard around 'sin' \(test_cut.py:\d+\) is a function"),
        (ordered, r"'debug_print' .*has an effect \(OrderedDebugEffect\)"),
        (lambda x: (x, jnp.ones(3)), None),
        (lambda x: (x, 3.0), r"'<lambda>' returns 3.0, which is not an array"),
        (
            lambda x: (x, jnp.asarray(3.0)),
            r"a result is 3.0.*, whatever the arguments",
        ),
    ],
    ids=[
        "scan",
        "cond",
        "custom_jvp",
        "function",
        "effect",
        "constant",
        "3.0",
        "number",
    ],
)
def test_a_function_that_cannot_be_cut_is_an_error(fn, message):
    if message is None:  # a constant is an equation like any other
        assert region_lines(fn, X) == ["-: broadcast_in_dim"]
        return
    with pytest.raises(PlacerError, match=message):
        region_lines(fn, X)


def test_an_unordered_print_is_placed_with_its_operand(capfd):
    def fn(x):
        with place_guard(FIRST):
            y = jnp.sin(x)
        jax.debug.print("sum {}", y.sum())
        return y

    (line,) = region_lines(fn, X)
    assert "debug_print" in line
    check_same(fn, X)
    jax.effects_barrier()
    assert "sum" in capfd.readouterr().out
