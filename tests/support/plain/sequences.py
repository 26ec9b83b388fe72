"""The sequence models of `specs/` as plain JAX programs, written by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from placer.readers import Order
from support.imported_files import import_file
from support.plain.specs import SPECS, Program


def _columns(name: str, *columns: str) -> dict[str, np.ndarray]:
    """Return columns of the training rows that the module of a spec yields."""
    rows = list(import_file(SPECS / f"{name}.py").train())
    return {name: np.array([row[name] for row in rows], np.int32) for name in columns}


def _classes(logits: Any, label: Any) -> tuple[Any, dict[str, Any]]:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    right = jnp.argmax(logits, axis=-1) == label
    return losses.mean(), {
        "loss": losses.mean(),
        "accuracy": right.astype(logits.dtype).mean(),
    }


def _warm_cosine(count: Any, warm: int, init: float, steps: int) -> Any:
    """Return the learning rate at a step: linear warmup, then cosine decay."""
    count = jnp.asarray(count, float)
    part = jnp.clip((count - warm) / steps, 0, 1)
    fallen = init * 0.5 * (1 + jnp.cos(jnp.pi * part))
    return jnp.where(count < warm, init * count / warm, fallen)


def _layer_norm(p: dict[str, Any], name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    deviation = jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    return (x - mean) / deviation * p[f"{name}.scale"] + p[f"{name}.bias"]


def _attention(p: dict[str, Any], name: str, x: Any, heads: int) -> Any:
    rows, time, width = x.shape

    def projected(which: str) -> Any:
        y = x @ p[f"{name}.w_{which}"]
        return y.reshape(rows, time, heads, width // heads).swapaxes(1, 2)

    query, key, value = map(projected, ("query", "key", "value"))
    scores = query @ key.swapaxes(2, 3) / (width // heads) ** 0.5
    past = jnp.arange(time) <= jnp.arange(time)[:, None]
    weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf))
    joined = (weights @ value).swapaxes(1, 2).reshape(rows, time, width)
    return joined @ p[f"{name}.w_output"]


def transformer() -> Program:
    def loss(p: dict[str, Any], rows: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        x = p["characters.table"][rows["text"]] + p["x.table"]
        for block in (1, 2):
            first, second = 2 * block - 1, 2 * block
            x = x + _attention(p, f"seen{block}", _layer_norm(p, f"norm{first}", x), 4)
            h = _layer_norm(p, f"norm{second}", x)
            h = h @ p[f"wide{block}.w"] + p[f"wide{block}.b"]
            h = jax.nn.gelu(h, approximate=False)
            x = x + h @ p[f"narrow{block}.w"] + p[f"narrow{block}.b"]
        logits = _layer_norm(p, "norm5", x) @ p["logits.w"] + p["logits.b"]
        return _classes(logits, rows["next"])

    return Program(
        _columns("transformer_rows", "text", "next"),
        lambda rows: Order(rows, 64, True, 1, "drop"),
        loss,
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adam(lambda count: _warm_cosine(count, 50, 3e-3, 718)),
        ),
    )


def lstm() -> Program:
    def loss(p: dict[str, Any], rows: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        x = p["vectors.table"][rows["letters"]]
        w, u, b = (p[f"memory.{name}"] for name in ("w_input", "w_recurrent", "b"))
        h = c = jnp.zeros((len(x), len(u)), x.dtype)
        for t in range(x.shape[1]):
            i, f, g, o = jnp.split(x[:, t] @ w + h @ u + b, 4, axis=1)
            new_c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            active = (t < rows["length"])[:, None]
            h = jnp.where(active, jax.nn.sigmoid(o) * jnp.tanh(new_c), h)
            c = jnp.where(active, new_c, c)
        return _classes(h @ p["logits.w"] + p["logits.b"], rows["right"])

    return Program(
        _columns("lstm_rows", "letters", "length", "right"),
        lambda rows: Order(rows, 128, True, 1, "drop"),
        loss,
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adam(lambda count: _warm_cosine(count, 200, 1e-2, 824)),
        ),
    )
