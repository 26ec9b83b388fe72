"""Where the equations of a function go: text in, regions out."""

import jax
import jax.numpy as jnp
import pytest
from support.regions import check_same, regions

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
    assert regions(two, W, W, X) == [
        "/node:worker:0: dot_general tanh",
        "/node:worker:1: dot_general sin",
    ]
    check_same(two, W, W, X)


def test_gradients_stand_with_what_they_are_gradients_of():
    def step(w, v, x, y):
        def loss(w, v):
            return ((two(w, v, x) - y) ** 2).mean()

        return jax.value_and_grad(loss, (0, 1))(w, v)

    forward, both, backward = regions(step, W, W, X, X)
    assert forward.startswith("/node:worker:0: dot_general tanh")
    assert both.startswith("/node:worker:1: dot_general sin cos")
    assert both.count("dot_general") == 3  # forward, and by either operand
    assert backward.startswith("/node:worker:0: mul")
    assert backward.count("dot_general") == 1  # by the weight alone
    check_same(step, W, W, X, X)


def test_a_guard_around_grad_is_merged_into():
    def step(w, x):
        def loss(w):
            with place_guard("/gpu:1"):
                return jnp.sin(x @ w).sum()

        with place_guard("/node:worker"):
            return jax.grad(loss)(w)

    (found,) = regions(step, W, X)
    assert found.startswith("/node:worker /gpu:1: dot_general cos")


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
def test_guards_are_seen_through(through, differentiated):
    def fn(w, v, x):
        inner = through(two)
        if differentiated:
            return jax.grad(lambda w, v: inner(w, v, x).sum(), (0, 1))(w, v)
        return inner(w, v, x)

    places = [text.partition(": ")[0] for text in regions(fn, W, W, X)]
    if differentiated:
        assert places[:2] == [FIRST, SECOND]
        assert set(places) == {FIRST, SECOND}
    else:
        assert places == [FIRST, SECOND]
    check_same(fn, W, W, X)


def test_a_call_without_guards_stays_whole():
    def fn(x):
        with place_guard(FIRST):
            return jax.jit(lambda y: jnp.sin(jnp.cos(y)))(x)

    assert regions(fn, X) == ["/node:worker:0: jit"]


def test_one_jaxpr_that_is_called_twice_is_two():
    inner = jax.jit(two)

    def fn(w, v, x):
        return inner(w, v, inner(v, w, x))

    assert [text.partition(": ")[0] for text in regions(fn, W, W, X)] == [
        *(FIRST, SECOND, FIRST, SECOND)
    ]
    check_same(fn, W, W, X)


def test_a_jitted_function_that_ran_before_has_its_guards():
    inner = jax.jit(two)
    ones = jnp.ones((4, 4))
    inner(ones, ones, jnp.ones((6, 4)))  # JAX remembers this trace
    assert len(regions(lambda w, v, x: inner(w, v, x), W, W, X)) == 2


def test_a_rule_of_its_own_for_differentiation_keeps_its_guards():
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

    found = regions(both, X)
    assert found[0].startswith("/node:worker:0: sin")
    assert found[-1] == "/node:worker:1: broadcast_in_dim cos mul"
    check_same(both, X)


def test_what_has_no_guard_follows_its_first_placed_operand():
    def fn(w, x):
        y = jnp.cos(x)  # nothing placed before it
        with place_guard(SECOND):
            z = y @ w
        return x + z

    assert regions(fn, W, X) == ["-: cos", "/node:worker:1: dot_general add"]
    check_same(fn, W, X)


def test_an_equation_joins_an_earlier_region_that_it_may():
    def fn(x, y):
        with place_guard(FIRST):
            a = jnp.sin(x)
        with place_guard(SECOND):
            b = jnp.cos(a)
        with place_guard(FIRST):
            c = jnp.tan(y)  # takes nothing of the second
            return c + b  # does

    assert regions(fn, X, X) == [
        "/node:worker:0: sin tan",
        "/node:worker:1: cos",
        "/node:worker:0: add",
    ]
    check_same(fn, X, X)


def test_guards_clear_what_is_open():
    def fn(x):
        with place_guard("/node:worker/gpu:1"):
            with place_guard(None):
                a = jnp.sin(x)
            with device_guard(None):
                b = jnp.cos(a)
            with place_guard(""):
                return jnp.tan(b)

    assert regions(fn, X) == [
        "!clear: sin",
        "/node:worker/gpu:1 !device: cos",
        "/node:worker/gpu:1: tan",
    ]


def test_what_depends_on_nothing_is_made_where_it_is_needed():
    def fn(x):
        mask = jnp.arange(4) > 1
        with place_guard(FIRST):
            a = jnp.where(mask, x, 0.0)
        with place_guard(SECOND):
            return jnp.where(mask, 0.0, jnp.sin(a))

    first, second = regions(fn, X)
    assert "iota" in first
    assert "iota" in second
    check_same(fn, X)


def test_what_two_places_need_of_a_parameter_is_a_region_of_its_own():
    def fn(w, x):
        with place_guard(FIRST):
            half = 0.5 * w
            a = x @ half
        with place_guard(SECOND):
            return jnp.sin(a) @ half

    assert regions(fn, W, X) == [
        "/node:worker:0: mul",
        "/node:worker:0: dot_general",
        "/node:worker:1: sin dot_general",
    ]
    check_same(fn, W, X)


def test_what_no_result_needs_is_dropped():
    def fn(x):
        with place_guard(FIRST):
            jnp.cos(x)
        with place_guard(SECOND):
            return jnp.sin(x)

    assert regions(fn, X) == ["/node:worker:1: sin"]


def test_what_a_function_closes_over_goes_along():
    held = jnp.arange(4.0)

    def fn(x):
        with place_guard(FIRST):
            return x * held

    assert len(regions(fn, X)) == 1
    check_same(fn, X)


def test_results_may_be_inputs_and_the_same_twice():
    def fn(w, x):
        y = jnp.sin(x)
        return {"x": x, "w": w, "y": (y, y)}

    assert regions(fn, W, X) == ["-: sin"]
    check_same(fn, W, X)


def scanned(place):
    def fn(x):
        def body(carry, _):
            with place_guard(place):
                return jnp.sin(carry), None

        with place_guard("/node:worker:0/cpu"):
            return jax.lax.scan(body, x, length=3)[0]

    return fn


def test_a_loop_is_one_equation_whose_guards_say_the_same():
    assert regions(scanned("/node:worker"), X) == ["/node:worker:0/cpu: scan"]


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
            r"a guard inside of 'scan' \(test_cut.py:\d+\) says /node:worker:0/cpu:1, and"
            r" around it is /node:worker:0/cpu: it runs in one place",
        ),
        (branched, r"a guard inside of 'cond' \(test_cut.py:\d+\) says /node:worker:1"),
        (
            lambda x: ruled(x),
            r"a guard inside of 'custom_jvp_call' .*:\d+\) says /node:worker:1",
        ),
        (asked, r"a guard around 'sin' \(test_cut.py:\d+\) is a function"),
        (ordered, r"'debug_print' .*has an effect \(OrderedDebugEffect\)"),
        (lambda x: (x, jnp.ones(3)), None),
        (lambda x: (x, 3.0), r"'<lambda>' returns 3.0, which is no array"),
        (
            lambda x: (x, jnp.asarray(3.0)),
            r"a result is 3.0.*, whatever the function is given",
        ),
    ],
    ids=["scan", "cond", "custom_jvp", "function", "effect", "made", "3.0", "number"],
)
def test_what_cannot_be_cut_is_told(fn, message):
    if message is None:  # a constant is made like anything else
        assert regions(fn, X) == ["-: broadcast_in_dim"]
        return
    with pytest.raises(PlacerError, match=message):
        regions(fn, X)


def test_an_unordered_print_stands_with_what_it_shows(capfd):
    def fn(x):
        with place_guard(FIRST):
            y = jnp.sin(x)
        jax.debug.print("sum {}", y.sum())
        return y

    (found,) = regions(fn, X)
    assert "debug_print" in found
    check_same(fn, X)
    jax.effects_barrier()
    assert "sum" in capfd.readouterr().out
