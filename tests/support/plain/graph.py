"""Runs the graph of a spec as a plain JAX program: whole batches, one op after another.

The formulas of ops are those of the tests of ops. batch_norm, dropout and `call` are
written here again; metrics are computed by `support.plain.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
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


def flatten_ops(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ops of the section `graph` of a spec, in program order, without
    scopes."""
    ops = []
    for entry in entries:
        ops += flatten_ops(entry["ops"]) if "op" not in entry else [entry]
    return ops


def forward(
    spec: Mapping[str, Any],
    rows: Arrays,
    parameters: Arrays,
    functions: Functions,
    step: Any,
    *,
    training: bool,
    numbers: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return every value of the graph by name, and the new value of each state.

    The value of a metric is the tuple of its operands. `functions` has the functions of
    `call` ops by their `fn`; `step` counts from 1. `numbers` are those of the rows in
    the batch, if they are not from 0 on.
    """
    values: dict[str, Any] = {**rows, **parameters}
    state: dict[str, Any] = {}
    count = len(next(iter(rows.values())))
    numbers = jnp.arange(count) if numbers is None else numbers
    position = jnp.stack([jnp.full(count, step), numbers], -1)
    position = position.astype(jnp.uint32)
    for entry in flatten_ops(spec["graph"]):
        kind, name = entry["op"], entry["name"]
        operands = [values[i] for i in as_list(entry.get("in", []))]
        attrs = {k: v for k, v in entry.items() if k not in _COMMON}
        if kind == "parameter":
            continue
        if kind in METRICS:
            values[name] = tuple(operands)
        elif kind == "dropout":
            bits = _random_stream(spec, name)
            dropped = plain_drop(operands[0], position, attrs["rate"], bits)
            (out,) = result_names(entry, dropped)
            values[out] = dropped if training else operands[0]
        elif kind in ("nce", "sampled_softmax"):
            x, label = operands
            w, b = (values[names] for names in parameter_names(entry, values).values())
            of = (position, attrs.pop("classes"), attrs.pop("num_sampled"))
            how = {k: attrs[k] for k in ("sampler",) if k in attrs}
            drawn = plain_sample(*of, _random_stream(spec, name), **how)
            loss = plain_nce if kind == "nce" else plain_softmax
            if attrs.get("reduce", "mean") == "mean":
                attrs["count"] = count
            result = loss(x, w, b, label, drawn, **attrs)
            values |= dict(zip(result_names(entry, result), [result], strict=True))
        elif kind == "batch_norm":
            parameters_of_op = {
                o: values[names] for o, names in parameter_names(entry, values).items()
            }
            kept = _keeps_state(spec, f"{name}.running_mean")
            y, new = _batch_norm(
                *operands, parameters_of_op, training=training and not kept, **attrs
            )
            values |= dict(zip(result_names(entry, y), [y], strict=True))
            if not kept:
                state |= {f"{name}.{key}": value for key, value in new.items()}
        elif kind == "call":
            rng = _keys(_random_stream(spec, name), position)
            outs, new = _run_call(entry, operands, values, functions, rng, training)
            values |= outs
            new = {f"{name}.{key}": value for key, value in new.items()}
            state |= {k: v for k, v in new.items() if not _keeps_state(spec, k)}
        else:
            names = parameter_names(entry, values)
            if kind in _STATE_COUNTS:
                operands = _with_states(kind, operands, values[names["w_recurrent"]])
            attrs = {
                k: v for k, v in attrs.items() if k not in _SHAPE_ATTRS.get(kind, ())
            }
            if kind == "reshape":
                sizes = [count if d == "batch" else d for d in attrs["shape"]]
                result = operands[0].reshape(sizes)
            else:
                result = FORMULAS[kind](
                    *operands, *(values[o] for o in names.values()), **attrs
                )
            values |= dict(
                zip(result_names(entry, result), _as_tuple(result), strict=True)
            )
    return values, state


_COMMON = ("name", "op", "in", "out", "place", "params")


def as_list(names: Any) -> list[str]:
    """Return one name or a list of names as a list."""
    return [names] if isinstance(names, str) else names


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def result_names(entry: Mapping[str, Any], result: Any) -> list[str]:
    """Return the names of the results of an op."""
    if "out" in entry:
        return as_list(entry["out"])
    if not isinstance(result, tuple):
        return [entry["name"]]
    named = _RESULTS.get(entry["op"], [f"out{i}" for i in range(len(result))])
    return [f"{entry['name']}.{result}" for result in named]


_RESULTS = {
    "top_k": ["values", "indices"],
    "simple_rnn": ["sequence", "last"],
    "gru": ["sequence", "last"],
    "lstm": ["sequence", "last", "cell"],
}


def parameter_names(entry: Mapping[str, Any], known: Arrays) -> dict[str, str]:
    """Return the names of the parameters of a layer by operand, shared or its own."""
    shared = entry.get("params", {})
    names = {}
    for operand in LAYERS.get(entry["op"], ()):
        name = shared.get(operand, f"{entry['name']}.{operand}")
        if name in known:
            names[operand] = name
    return names


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
_SHAPE_ATTRS: dict[str, tuple[str, ...]] = {
    "fc": ("size", "bias"),
    **{kind: _KERNEL for kind in LAYERS if "conv" in kind},
    **{kind: ("affine", "bias") for kind in LAYERS if kind.endswith("_norm")},
    **dict.fromkeys(("simple_rnn", "gru", "lstm"), ("size", "bias")),
    "multi_head_attention": ("size", "bias"),
    "embedding": ("size", "dtype"),
}
"""Attributes that define the parameters of a layer, and not what it computes."""


_STATE_COUNTS = {"simple_rnn": 1, "gru": 1, "lstm": 2}


def _with_states(kind: str, operands: list[Any], recurrent: Any) -> list[Any]:
    """Return the operands with zeros for missing initial states.

    The formula of the op identifies operands by their shapes, which is ambiguous for
    some batch sizes; with all states present it is not.
    """
    x, *rest = operands
    if any(value.ndim == 2 for value in rest):
        return operands
    zeros = jnp.zeros((len(x), len(recurrent)), x.dtype)
    return [x, *[zeros] * _STATE_COUNTS[kind], *rest]


def _dtype(name: str) -> str:
    """Return float64 for every float dtype, as `precision: float64` does."""
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


def _keeps_state(spec: Mapping[str, Any], name: str) -> bool:
    rules = spec.get("parameters", [])
    rule = next((r for r in rules if fnmatchcase(name, r["match"])), {})
    return not rule.get("trainable", True)


def _batch_norm(
    x: Any,
    parameters: Arrays,
    *,
    training: bool,
    momentum: float = 0.99,
    epsilon: float = 1e-5,
    scope: str = "batch",
) -> tuple[Any, dict[str, Any]]:
    """Normalize with the statistics of the whole batch.

    On one place this is the same as the scope `replica`.
    """
    axes = tuple(range(x.ndim - 1))
    statistics = {"mean": jnp.mean(x, axes), "variance": jnp.var(x, axes)}
    new = {
        f"running_{what}": momentum * parameters[f"running_{what}"]
        + (1 - momentum) * value
        for what, value in statistics.items()
    }
    if not training:
        statistics = {what: parameters[f"running_{what}"] for what in statistics}
    normed = (x - statistics["mean"]) / jnp.sqrt(statistics["variance"] + epsilon)
    return normed * parameters["scale"] + parameters["bias"], new


def _random_stream(spec: Mapping[str, Any], name: str) -> int:
    """Return the number of the random stream of an op."""
    digest = sha256(f"{spec.get('seed', 0)}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _keys(stream: int, position: Any) -> Any:
    """Return a random key for each row, computed with threefry of JAX."""
    words = [jnp.full(len(position), w, jnp.uint32) for w in (stream & 0xFFFFFFFF, stream >> 32)]  # fmt: skip
    bits = threefry2x32_p.bind(*words, position[:, 0], position[:, 1])
    return jax.random.wrap_key_data(jnp.stack(bits, -1), impl="threefry2x32")


def _run_call(
    entry: Mapping[str, Any],
    inputs: list[Any],
    values: Arrays,
    functions: Functions,
    rng: Any,
    training: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    name = entry["name"]
    parameters = {
        key: values[source if isinstance(source, str) else f"{name}.{key}"]
        for key, source in entry.get("params", {}).items()
    }
    state = {key: values[f"{name}.{key}"] for key in entry.get("state", {})}
    rng = rng if entry.get("batch") == "rows" else rng[0]
    fn = functions[entry["fn"]]
    result, new = fn(parameters, state, *inputs, rng=rng, training=training)
    out = entry["out"]
    names = [name] if isinstance(out, str) else [n for each in out for n in each]
    return dict(zip(names, _as_tuple(result), strict=True)), new
