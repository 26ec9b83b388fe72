"""The graph of a spec as a plain JAX program: whole batches, one op after the other.

What an op computes is the plain formula of the ops' own tests, batch_norm, dropout and
`call` are written here once more; metrics are left to `plain_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from support.op_cases import PLAIN
from support.op_uses.random import plain_drop
from support.op_uses.sampling import plain_nce, plain_sample, plain_softmax
from support.plain.metrics import METRICS

Arrays = Mapping[str, Any]
Functions = Mapping[str, Callable[..., Any]]


def flat(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ops of a spec's graph, in program order, without its blocks."""
    found = []
    for entry in entries:
        found += flat(entry["ops"]) if "op" not in entry else [entry]
    return found


def forward(
    spec: Mapping[str, Any],
    rows: Arrays,
    parameters: Arrays,
    functions: Functions,
    step: Any,
    *,
    training: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every value of the graph by name, and the new value of each state.

    A metric's value is what it is taken of. `functions` are those of `call`, by their
    `fn`; `step` counts from 1.
    """
    values: dict[str, Any] = {**rows, **parameters}
    state: dict[str, Any] = {}
    count = len(next(iter(rows.values())))
    position = jnp.stack([jnp.full(count, step), jnp.arange(count)], -1)
    position = position.astype(jnp.uint32)
    for entry in flat(spec["graph"]):
        kind, name = entry["op"], entry["name"]
        operands = [values[i] for i in listed(entry.get("in", []))]
        attrs = {k: v for k, v in entry.items() if k not in _COMMON}
        if kind == "parameter":
            continue
        if kind in METRICS:
            values[name] = tuple(operands)
        elif kind == "dropout":
            bits = _stream(spec, name)
            dropped = plain_drop(operands[0], position, attrs["rate"], bits)
            (out,) = results_of(entry, dropped)
            values[out] = dropped if training else operands[0]
        elif kind in ("nce", "sampled_softmax"):
            x, label = operands
            w, b = (values[own] for own in parameters_of(entry, values).values())
            of = (position, attrs.pop("classes"), attrs.pop("num_sampled"))
            how = {k: attrs[k] for k in ("sampler",) if k in attrs}
            drawn = plain_sample(*of, _stream(spec, name), **how)
            loss = plain_nce if kind == "nce" else plain_softmax
            if attrs.get("reduce", "mean") == "mean":
                attrs["count"] = count
            found = loss(x, w, b, label, drawn, **attrs)
            values |= dict(zip(results_of(entry, found), [found], strict=True))
        elif kind == "batch_norm":
            held = {o: values[own] for o, own in parameters_of(entry, values).items()}
            y, new = _batch_norm(*operands, held, training=training, **attrs)
            values |= dict(zip(results_of(entry, y), [y], strict=True))
            state |= {f"{name}.{key}": value for key, value in new.items()}
        elif kind == "call":
            rng = _keys(_stream(spec, name), position)
            outs, new = _called(entry, operands, values, functions, rng, training)
            values |= outs
            state |= {f"{name}.{key}": value for key, value in new.items()}
        else:
            own = parameters_of(entry, values)
            if kind in _RECURRENT:
                operands = _with_states(kind, operands, values[own["w_recurrent"]])
            attrs = {k: v for k, v in attrs.items() if k not in _SHAPES.get(kind, ())}
            if kind == "reshape":
                sizes = [count if d == "batch" else d for d in attrs["shape"]]
                found = operands[0].reshape(sizes)
            else:
                found = FORMULAS[kind](
                    *operands, *(values[o] for o in own.values()), **attrs
                )
            values |= dict(zip(results_of(entry, found), _several(found), strict=True))
    return values, state


_COMMON = ("name", "op", "in", "out", "place", "params")


def listed(names: Any) -> list[str]:
    """One name or several, as several."""
    return [names] if isinstance(names, str) else names


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def results_of(entry: Mapping[str, Any], found: Any) -> list[str]:
    """The names of what an op gave."""
    if "out" in entry:
        return listed(entry["out"])
    if not isinstance(found, tuple):
        return [entry["name"]]
    named = _RESULTS.get(entry["op"], [f"out{i}" for i in range(len(found))])
    return [f"{entry['name']}.{result}" for result in named]


_RESULTS = {
    "top_k": ["values", "indices"],
    "simple_rnn": ["sequence", "last"],
    "gru": ["sequence", "last"],
    "lstm": ["sequence", "last", "cell"],
}


def parameters_of(entry: Mapping[str, Any], known: Arrays) -> dict[str, str]:
    """The parameters that a layer takes, by operand: shared ones, and its own."""
    shared = entry.get("params", {})
    found = {}
    for operand in LAYERS.get(entry["op"], ()):
        name = shared.get(operand, f"{entry['name']}.{operand}")
        if name in known:
            found[operand] = name
    return found


_PROJECTIONS = ("query", "key", "value", "output")
_GATES = ("w_input", "w_recurrent", "b")
LAYERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("fc", "conv1d", "conv2d", "depthwise_conv2d"),
            *("conv1d_transpose", "conv2d_transpose", "nce", "sampled_softmax"),
        ),
        ("w", "b"),
    ),
    **dict.fromkeys(("embedding", "position_embedding"), ("table",)),
    **dict.fromkeys(("layer_norm", "group_norm"), ("scale", "bias")),
    "rms_norm": ("scale",),
    "batch_norm": ("scale", "bias", "running_mean", "running_variance"),
    **dict.fromkeys(("simple_rnn", "lstm"), _GATES),
    "gru": (*_GATES, "b_recurrent"),
    "multi_head_attention": tuple(f"{kind}_{p}" for p in _PROJECTIONS for kind in "wb"),
}
_KERNEL = ("filters", "kernel_size", "multiplier", "bias")
_SHAPES: dict[str, tuple[str, ...]] = {
    "fc": ("size", "bias"),
    **{kind: _KERNEL for kind in LAYERS if "conv" in kind},
    **{kind: ("affine", "bias") for kind in LAYERS if kind.endswith("_norm")},
    **dict.fromkeys(("simple_rnn", "gru", "lstm"), ("size", "bias")),
    "multi_head_attention": ("size", "bias"),
    "embedding": ("size", "dtype"),
}
"""Attributes that say what parameters a layer has, and nothing of what it computes."""


_RECURRENT = {"simple_rnn": 1, "gru": 1, "lstm": 2}


def _with_states(kind: str, operands: list[Any], recurrent: Any) -> list[Any]:
    """The states that were left out are zeros: the formula tells operands by shapes,
    which may be a batch's by chance."""
    x, *rest = operands
    if any(value.ndim == 2 for value in rest):
        return operands
    zeros = jnp.zeros((len(x), len(recurrent)), x.dtype)
    return [x, *[zeros] * _RECURRENT[kind], *rest]


def _dtype(name: str) -> str:
    """`precision: float64` makes every float one."""
    return "float64" if "float" in name else name


FORMULAS: dict[str, Callable[..., Any]] = {
    **PLAIN,
    "constant": lambda value, dtype="float32", shape=(): jnp.full(
        shape, value, _dtype(dtype)
    ),
    "cast": lambda x, dtype: x.astype(_dtype(dtype)),
    "stop_gradient": jax.lax.stop_gradient,
    "greater": lambda a, b: a > b,
    "less": lambda a, b: a < b,
    "equal": lambda a, b: a == b,
    "argmax": lambda x, axis=-1, keepdims=False: jnp.argmax(x, axis, keepdims=keepdims),
    "argmin": lambda x, axis=-1, keepdims=False: jnp.argmin(x, axis, keepdims=keepdims),
    "one_hot": lambda ids, classes, dtype="float32": jax.nn.one_hot(
        ids, classes, dtype=_dtype(dtype)
    ),
}


def _batch_norm(
    x: Any,
    held: Arrays,
    *,
    training: bool,
    momentum: float = 0.99,
    epsilon: float = 1e-5,
    scope: str = "batch",
) -> tuple[Any, dict[str, Any]]:
    """By the statistics of the whole batch: on one place that is the scope `replica`
    too."""
    axes = tuple(range(x.ndim - 1))
    found = {"mean": jnp.mean(x, axes), "variance": jnp.var(x, axes)}
    new = {
        f"running_{what}": momentum * held[f"running_{what}"] + (1 - momentum) * value
        for what, value in found.items()
    }
    if not training:
        found = {what: held[f"running_{what}"] for what in found}
    normed = (x - found["mean"]) / jnp.sqrt(found["variance"] + epsilon)
    return normed * held["scale"] + held["bias"], new


def _stream(spec: Mapping[str, Any], name: str) -> int:
    """The op's stream of random bits."""
    digest = sha256(f"{spec.get('seed', 0)}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _keys(stream: int, position: Any) -> Any:
    """A key for each row, by JAX's own threefry."""
    words = [jnp.full(len(position), w, jnp.uint32) for w in (stream & 0xFFFFFFFF, stream >> 32)]  # fmt: skip
    bits = threefry2x32_p.bind(*words, position[:, 0], position[:, 1])
    return jax.random.wrap_key_data(jnp.stack(bits, -1), impl="threefry2x32")


def _called(
    entry: Mapping[str, Any],
    inputs: list[Any],
    values: Arrays,
    functions: Functions,
    rng: Any,
    training: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    name = entry["name"]
    parameters = {
        key: values[given if isinstance(given, str) else f"{name}.{key}"]
        for key, given in entry.get("params", {}).items()
    }
    state = {key: values[f"{name}.{key}"] for key in entry.get("state", {})}
    rng = rng if entry.get("batch") == "rows" else rng[0]
    fn = functions[entry["fn"]]
    found, new = fn(parameters, state, *inputs, rng=rng, training=training)
    out = entry["out"]
    names = [name] if isinstance(out, str) else [n for each in out for n in each]
    return dict(zip(names, _several(found), strict=True)), new
