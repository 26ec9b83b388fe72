"""Complex values inside a traced function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.regions import arguments_text, check_same

from placer import ops, place_guard
from placer.errors import PlacerError
from placer.ops.functions.cut import ROW_NUMBERS, STEP_KEY
from placer.ops.functions.fingerprint import has_fingerprint
from placer.ops.functions.function import trace_function
from placer.ops.functions.mode import Mode
from placer.ops.functions.run_region import fingerprint_of

TYPES = ("float32[batch, 4]", "float32[4]")
ARGS = arguments_text(*TYPES)
WAVES = np.exp(1j * np.arange(4)).astype(np.complex64)


def across(x: jax.Array, w: jax.Array) -> jax.Array:
    with place_guard("/node:worker:0"):
        h = jnp.fft.rfft(x) * jnp.exp(1j * w[:3])
    with place_guard("/node:worker:1"):
        return jnp.fft.irfft(h * h, n=4)


def test_a_complex_value_goes_from_place_to_place_as_real_numbers() -> None:
    check_same(across, *TYPES)
    first, second = trace_function(across, ARGS, 6).cut.regions
    (sent,), (received,) = first.closed.out_avals, second.closed.in_avals
    assert (sent.shape, str(sent.dtype)) == ((6, 3, 2), "float32")
    assert sent == received


def test_a_gradient_through_a_complex_value_is_that_of_jax() -> None:
    rng = np.random.default_rng(0)
    x, w, dy = (
        rng.normal(size=size).astype(np.float32) for size in ((5, 4), (4,), (5, 4))
    )
    position = jnp.zeros((5, 2), jnp.uint32)
    how: dict[str, Any] = {"fn": across, "args": ARGS, "batch": "rows"}
    h, first = ops.call.forward(x, w, position, **how)
    _, second = ops.call.forward(h, position, region=1, **how)
    dh, _ = ops.call.backward(second, dy)
    got = ops.call.backward(first, dh)[:2]
    _, vjp = jax.vjp(across, x, w)
    for one, other in zip(got, vjp(dy), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def masked(x: jax.Array, w: jax.Array, key: jax.Array) -> jax.Array:
    with place_guard("/node:worker:0"):
        h = jnp.fft.rfft(x) * jnp.exp(1j * w[:3])
    with place_guard("/node:worker:1"):
        return jnp.fft.irfft(h * jax.random.bernoulli(key, 0.5, h.shape), n=4)


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_region_with_complex_operands_draws_random_numbers(by_rows: bool) -> None:
    mode = Mode(training=True, by_rows=by_rows)
    first, second = trace_function(masked, ARGS, 6, mode).cut.regions
    drawn = {STEP_KEY: jax.random.key(3), ROW_NUMBERS: jnp.arange(6, dtype=jnp.uint32)}
    assert set(second.random) == ({*drawn} if by_rows else {STEP_KEY})
    x, w = (
        jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), "float32"),
        WAVES.real,
    )
    (y,) = second(*first(x, w), *(drawn[each] for each in second.random))
    if not by_rows:
        np.testing.assert_allclose(
            y, masked(x, w, drawn[STEP_KEY]), rtol=1e-5, atol=1e-6
        )
        return
    keys = jax.vmap(lambda row: jax.random.fold_in(drawn[STEP_KEY], row))(jnp.arange(6))
    rows = jax.vmap(masked, (0, None, 0))(x, w, keys)
    np.testing.assert_allclose(y, rows, rtol=1e-5, atol=1e-6)


def test_messages_name_the_equation_of_a_complex_value() -> None:
    first, second = trace_function(across, ARGS, 6).cut.regions
    assert first.describe_result(0).startswith("'mul' (test_complex_values.py:")
    assert second.describe_start().startswith("'mul' (test_complex_values.py:")


@pytest.mark.parametrize("part", [1.5, 1.5j])
def test_a_fingerprint_has_the_real_and_the_imaginary_parts(part: complex) -> None:
    def turned(waves: Any) -> Any:
        return lambda x, w: (x * w * jnp.asarray(waves)).real

    mine = fingerprint_of(turned(WAVES), ARGS, 0)

    def is_same(waves: Any) -> bool:
        (region,) = trace_function(turned(waves), ARGS, 14).cut.regions
        return has_fingerprint(region, mine)

    assert is_same(WAVES)
    assert not is_same(WAVES + np.complex64(part))


def test_a_complex_result_is_refused() -> None:
    with pytest.raises(PlacerError, match="'fft' returns an array of complex64") as e:
        trace_function(jnp.fft.fft, arguments_text(TYPES[0]), 6)
    assert e.value.hint == "return its parts: y.real, y.imag"
