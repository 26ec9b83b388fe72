"""digits: the model in JAX. Exported by placer, which it does not need.

    params = load_params("params.safetensors")
    outputs = jax.jit(model)(params, image)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import jax
import jax.numpy as jnp
from safetensors.flax import load


def model(params: dict[str, jax.Array], image: jax.Array) -> dict[str, jax.Array]:
    """Return the outputs by name.

    Args:
        params: the parameters by name, as `load_params` returns them.
        image: float32[batch, 64].

    Returns:
        probability: float32[batch, 10].
    """
    image = jnp.asarray(image, "float32")
    h1 = fc(image, params["h1.w"], params["h1.b"], activation="relu")
    logits = fc(h1, params["logits.w"], params["logits.b"])
    probability = softmax(logits)
    return {"probability": probability}


def broadcast_add(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a + b, broadcast to each other."""
    return a + b


def relu(x: jax.Array) -> jax.Array:
    y = jnp.maximum(x, 0)
    return y


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": relu,
}
"""The activation functions of layers, by their names in a spec."""


def add_bias_and_activate(
    y: jax.Array, b: jax.Array | None, activation: str
) -> jax.Array:
    """Add the bias b to y, if there is one, and apply an activation."""
    if b is not None:
        y = broadcast_add(y, b)
    return y if activation == "none" else ACTIVATIONS[activation](y)


def fc(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None = None,
    *,
    activation: str = "none",
    transpose_w: bool = False,
) -> jax.Array:
    contracted = ((x.ndim - 1,), (1 if transpose_w else 0,))
    y = jax.lax.dot_general(x, w, (contracted, ((), ())))
    return add_bias_and_activate(y, b, activation)


def softmax(x: jax.Array, *, axis: int = -1) -> jax.Array:
    powers = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    y = powers / jnp.sum(powers, axis=axis, keepdims=True)
    return y


def load_params(path: str = "params.safetensors") -> dict[str, jax.Array]:
    """Return the parameters of a safetensors file by name.

    Raises ValueError if the file has changed since placer wrote it.
    """
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata = header.pop("__metadata__", {})
    entries, size = json.dumps(header, separators=(",", ":")).encode(), 4 << 20
    values = memoryview(content)[start:]
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    checksums = "".join(f"{crc32(each):08x}" for each in [memoryview(entries), *chunks])
    if metadata.get("placer.crc32", checksums) != checksums:
        raise ValueError(f"{path} is damaged: it does not have its checksums")
    params: dict[str, jax.Array] = load(content)
    return params
