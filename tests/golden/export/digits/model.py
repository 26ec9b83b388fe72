"""digits: the model in JAX. Exported by placer; works without placer.

    params = load_params("params.safetensors")
    outputs = jax.jit(model)(params, image)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import ops
from params import load_params

__all__ = ["load_params", "model"]


def model(params: dict[str, jax.Array], image: jax.Array) -> dict[str, jax.Array]:
    """Return the outputs by name.

    Args:
        params: the parameters by name, from `load_params`.
        image: float32[batch, 64].

    Returns:
        probability: float32[batch, 10].
    """
    image = jnp.asarray(image, "float32")
    h1 = ops.fc(image, params["h1.w"], params["h1.b"], activation="relu")
    logits = ops.fc(h1, params["logits.w"], params["logits.b"])
    probability = ops.softmax(logits)
    return {"probability": probability}
