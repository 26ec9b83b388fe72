"""The block that custom_op.yaml calls, as an Equinox module.

It mixes the lines of an image, then the features of each line (MLP-Mixer, Tolstikhin et
al. 2021).
"""

import equinox
import jax


class Mixer(equinox.Module):
    """The block, for one image; its fields are the parameters in the spec."""

    lines_in: jax.Array
    lines_out: jax.Array
    features_in: jax.Array
    features_out: jax.Array

    def __call__(self, x: jax.Array, key: jax.Array, training: bool) -> jax.Array:
        """Map [lines, features] to the same shape."""
        norm = equinox.nn.LayerNorm(x.shape[-1], use_weight=False, use_bias=False)
        dropout = equinox.nn.Dropout(0.5, inference=not training)
        between = jax.nn.gelu(jax.vmap(norm)(x).T @ self.lines_in) @ self.lines_out
        x = x + between.T
        within = jax.nn.gelu(jax.vmap(norm)(x) @ self.features_in) @ self.features_out
        return dropout(x + within, key=key)


def mixer(
    params: dict[str, jax.Array],
    state: dict[str, jax.Array],
    x: jax.Array,
    rng: jax.Array,
    training: bool,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Apply the block to each row of a batch, with one random key per row."""
    block = Mixer(**params)
    return jax.vmap(lambda row, key: block(row, key, training))(x, rng), state
