"""User code: a graph network of jraphx in Flax nnx, with BatchNorm and dropout."""

import jax.numpy as jnp
import optax
from flax import nnx
from jraphx.nn.models import GCN


def make():
    return GCN(
        5,
        hidden_features=32,
        num_layers=3,
        out_features=3,
        dropout_rate=0.2,
        norm="batch_norm",
        rngs=nnx.Rngs(0),
    )


def losses(model, nodes, edges, label):
    """The graphs of the batch are one graph without edges between them."""
    graphs, count, features = nodes.shape
    edges = edges + count * jnp.arange(graphs)[:, None, None]
    edges = edges.transpose(1, 0, 2).reshape(2, -1)
    results = model(nodes.reshape(-1, features), edges)
    logits = results.reshape(graphs, count, -1).mean(1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)
