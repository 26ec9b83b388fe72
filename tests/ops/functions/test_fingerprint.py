"""A node computes the function that was compiled, or reports that it has another one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.regions import arguments_text

from placer import place_guard
from placer.errors import PlacerError
from placer.ops.functions.fingerprint import has_fingerprint
from placer.ops.functions.function import trace_function
from placer.ops.functions.run_region import fingerprint_of, run_region

TYPES = ("float32[batch, 4]", "float32[4, 4]", "float32[4, 4]")


def summed(order, table=None):
    """Two layers; the order of their sum does not change the result."""
    table = np.ones(4, np.float32) if table is None else table

    def fn(x, a, b):
        layers = {"a": jnp.tanh(x @ a), "b": 3 * jnp.sin(x @ b)}
        with place_guard("/node:worker:1"):
            return layers[order[0]] + layers[order[1]] + jnp.asarray(table)

    return fn


def likeness(fn):
    return [
        fingerprint_of(fn, arguments_text(*TYPES), i) for i in range(len(regions(fn)))
    ]


def regions(fn):
    return trace_function(fn, arguments_text(*TYPES), 8).cut.regions


def test_the_same_function_has_the_same_fingerprint():
    assert likeness(summed("ab")) == likeness(summed("ab"))


def test_another_order_has_another_fingerprint():
    assert likeness(summed("ab")) != likeness(summed("ba"))


def test_other_arrays_of_the_file_differ_but_not_their_rounding():
    table = np.linspace(0.1, 1, 4, dtype=np.float32)
    *_, mine = likeness(summed("ab", table))

    def is_same(other):
        return has_fingerprint(_last(summed("ab", other)), mine)

    assert is_same(table)
    assert is_same(np.nextafter(table, 2))
    assert not is_same(table + 0.1)


def _last(fn):
    return trace_function(fn, arguments_text(*TYPES), 14).cut.regions[-1]


def test_equations_of_libraries_are_the_same_in_every_trace():
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
    fn, text = summed("ab"), arguments_text(*TYPES)
    same = fingerprint_of(summed("ba"), text, 1)
    inputs = [jnp.zeros((3, 4)), jnp.zeros((3, 4))]
    with pytest.raises(PlacerError, match="fn is not the function that was compiled"):
        run_region(fn, text, 1, 3, inputs, same)
