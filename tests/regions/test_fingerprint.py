"""A node computes the function that was compiled, or says that it has another one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.regions import text_of

from placer import place_guard
from placer.errors import PlacerError
from placer.regions.fingerprint import is_like
from placer.regions.function import likeness_of, run, traced

TYPES = ("float32[batch, 4]", "float32[4, 4]", "float32[4, 4]")


def summed(order, table=None):
    """Two layers, added in an order that the mathematics does not tell."""
    table = np.ones(4, np.float32) if table is None else table

    def fn(x, a, b):
        layers = {"a": jnp.tanh(x @ a), "b": 3 * jnp.sin(x @ b)}
        with place_guard("/node:worker:1"):
            return layers[order[0]] + layers[order[1]] + jnp.asarray(table)

    return fn


def likeness(fn):
    return [likeness_of(fn, text_of(*TYPES), i) for i in range(len(regions(fn)))]


def regions(fn):
    return traced(fn, text_of(*TYPES), 8).cut.regions


def test_the_same_function_made_again_is_the_same():
    assert likeness(summed("ab")) == likeness(summed("ab"))


def test_another_order_is_another_function():
    assert likeness(summed("ab")) != likeness(summed("ba"))


def test_other_arrays_of_the_file_are_another_function_but_not_their_rounding():
    table = np.linspace(0.1, 1, 4, dtype=np.float32)
    *_, mine = likeness(summed("ab", table))

    def is_same(other):
        return is_like(_last(summed("ab", other)), mine)

    assert is_same(table)
    assert is_same(np.nextafter(table, 2))
    assert not is_same(table + 0.1)


def _last(fn):
    return traced(fn, text_of(*TYPES), 14).cut.regions[-1]


def test_what_a_library_makes_is_the_same_in_every_trace():
    def fn(x, a, b):
        @jax.custom_vjp
        def double(y):
            return 2 * y

        double.defvjp(lambda y: (2 * y, None), lambda _, g: (2 * g,))
        body = jax.checkpoint(lambda y: jnp.tanh(double(y) @ a))
        last, _ = jax.lax.scan(lambda y, _: (body(y), None), x, None, length=3)
        keys = jax.vmap(jax.random.key)(x[:, 0].astype(int))
        noise = jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)
        return jax.vmap(lambda row: row @ b)(last) + noise

    first = likeness(fn)
    jax.clear_caches()
    assert likeness(fn) == first


def test_a_region_of_another_function_is_refused():
    fn, text = summed("ab"), text_of(*TYPES)
    same = likeness_of(summed("ba"), text, 1)
    inputs = [jnp.zeros((3, 4)), jnp.zeros((3, 4))]
    with pytest.raises(PlacerError, match="another function here than when it was"):
        run(fn, text, 1, 3, inputs, same)
