"""Random layers: ops that have parameters, or operate on sequences and images.

There is one function for each kind, or for several similar kinds. Each adds ops and
returns a value, or None if no value in the graph fits.
"""

from __future__ import annotations

from typing import Any

from placer.ops.declaration import LayerParameter
from placer.place.types import BATCH, TensorType
from support.drawn.sketch import (
    INPUTS,
    VOCABULARY,
    Sketch,
    Value,
    has_width,
    is_image,
    is_rows,
    is_sequence,
)

SMOOTH = ("none", "tanh", "sigmoid", "gelu", "silu", "softplus")
BOUNDED = ("tanh", "sigmoid", "softmax")


def fc(s: Sketch, x: Value | None = None, size: int = 0, act: str = "") -> Value:
    x = x or s.pick(s.sources(has_width))
    width = int(x.shape[-1])
    size = size or s.pick((1, 2, 3, 4))
    act = act or s.pick((*SMOOTH, "relu", "elu", "softmax", "log_softmax"))
    bound = 1.0 if act in BOUNDED else width * x.bound + 1
    attrs: dict[str, Any] = {"size": size, "activation": act}
    attrs["bias"] = s.pick((True, True, False))
    shared = {}
    same = [n for n, shape in s.trainable_shapes().items() if shape == (width, size)]
    flipped = [n for n, shape in s.trainable_shapes().items() if shape == (size, width)]
    if (same or flipped) and s.pick((True, False, False)):
        chosen = s.pick([*same, *flipped])
        if chosen in flipped and (chosen not in same or s.pick((True, False))):
            attrs["transpose_w"] = True
        shared = {"w": chosen}
    separated = x.separated and act in SMOOTH
    return s.add_op("fc", [x], bound=bound, separated=separated, shared=shared, **attrs)


def separated_like(s: Sketch, x: Value) -> Value | None:
    """Return a value of the shape of x whose elements are separated, x if possible."""
    if x.separated:
        return x
    if x.shape[:1] != (BATCH,) or BATCH in x.shape[1:]:
        return None
    like = [v for v in s.sources(lambda v: v.separated) if v.shape == x.shape]
    if like:
        return s.pick(like)
    wide = [v for v in s.sources(lambda v: v.separated and has_width(v))
            if v.shape[:-1] == x.shape[:-1]]  # fmt: skip
    return fc(s, s.pick(wide), int(x.shape[-1]), "tanh") if wide else None


def embedding(s: Sketch) -> Value | None:
    name = s.pick(("ids", "pairs"))
    ids = Value(name, INPUTS[name])
    tables = {
        n: shape
        for n, shape in s.trainable_shapes().items()
        if shape[:1] == (VOCABULARY,)
    }
    tables = {n: shape for n, shape in tables.items() if len(shape) == 2}
    width, shared = s.pick((2, 3)), {}
    if tables and s.pick((True, False)):
        shared = {"table": s.pick(tables)}
        width = tables[shared["table"]][1]
    attrs: dict[str, Any] = {"size": [VOCABULARY, width]}
    attrs["padding"] = s.pick((None, None, 0))
    if name == "ids" or s.pick((True, False)):
        return s.add_op("embedding", [ids], shared=shared, **attrs)
    attrs["combiner"] = s.pick(("sum", "mean", "sqrtn"))
    # The divisor of a mean with weights may be near 0
    pairs = s.sources(lambda v: v.shape == (BATCH, 2) and v.type.is_float)
    weights = [s.pick(pairs)] if pairs and attrs["combiner"] == "sum" else []
    bound = 2 * max([1.0, *(w.bound for w in weights)])
    return s.add_op("embedding", [ids, *weights], shared=shared, bound=bound, **attrs)


def conv(s: Sketch) -> Value | None:
    dims = s.pick((1, 2))
    x = s.pick(s.sources(is_sequence if dims == 1 else is_image))
    kinds = ["conv1d", "conv1d_transpose"]
    if dims == 2:
        kinds = ["conv2d", "conv2d_transpose", "depthwise_conv2d"]
    kind = s.pick(kinds)
    channels = int(x.shape[-1])
    act = s.pick(("none", "tanh", "relu"))
    attrs: dict[str, Any] = {"kernel_size": s.pick((1, 2)), "activation": act}
    attrs["padding"] = s.pick(("valid", "same"))
    attrs["strides"] = s.pick((1, 1, 2))
    if any(int(d) < attrs["kernel_size"] for d in x.shape[1:-1]):
        attrs["padding"] = "same"
    if kind == "depthwise_conv2d":
        attrs["multiplier"] = s.pick((1, 2))
    else:
        attrs["filters"] = s.pick((1, 2))
    attrs["bias"] = s.pick((True, False))
    bound = 1.0 if act == "tanh" else attrs["kernel_size"] ** dims * channels * x.bound
    whole = all(int(d) <= 6 for d in x.shape[1:-1])
    return s.add_op(kind, [x], bound=bound + 1, **attrs) if whole else None


def pool(s: Sketch) -> Value | None:
    x = s.pick(s.sources(lambda v: is_sequence(v) or is_image(v)))
    dims = len(x.shape) - 2
    which = s.pick(("max", "avg"))
    if which == "max":
        separated_x = separated_like(s, x)
        if separated_x is None:
            return None
        x = separated_x
    if dims == 2 and s.pick((True, False)):
        size = s.pick((1, 2, [2, 1]))
        return s.add_op(
            f"adaptive_{which}_pool2d", [x], bound=x.bound, output_size=size
        )
    padding = s.pick(("valid", "same"))
    size = s.pick((1, 2))
    if any(int(d) < size for d in x.shape[1:-1]):
        padding = "same"
    attrs = {"pool_size": size, "padding": padding, "strides": s.pick((1, 2))}
    return s.add_op(f"{which}_pool{dims}d", [x], bound=x.bound, **attrs)


def norm(s: Sketch) -> Value | None:
    """Normalize each row; a large epsilon keeps nearly constant rows from diverging."""
    kind = s.pick(("layer_norm", "rms_norm", "group_norm"))
    x = s.pick(s.sources(lambda v: has_width(v) and v.shape[0] == BATCH))
    if BATCH in x.shape[1:]:
        return None
    attrs: dict[str, Any] = {"epsilon": s.pick((0.1, 0.01))}
    if kind == "group_norm":
        attrs["groups"] = s.pick([g for g in (1, 2, 3) if int(x.shape[-1]) % g == 0])
    elif s.pick((True, False)):
        attrs["axis"] = s.pick(range(1, len(x.shape)))
    attrs["affine"] = s.pick((True, True, False))
    return s.add_op(kind, [x], bound=4.0, **attrs)


def batch_norm(s: Sketch) -> Value | None:
    x = s.pick(s.sources(lambda v: has_width(v) and v.shape[0] == BATCH))
    if BATCH in x.shape[1:]:
        return None
    attrs = {"epsilon": s.pick((0.1, 0.01)), "momentum": s.pick((0.9, 0.5))}
    return s.add_op("batch_norm", [x], bound=4.0, **attrs)


def dropout(s: Sketch) -> Value | None:
    x = s.pick(s.sources(lambda v: v.shape[:1] == (BATCH,)))
    rate = s.pick((0.5, 0.25))
    return s.add_op("dropout", [x], bound=x.bound / (1 - rate), rate=rate)


def recurrent(s: Sketch) -> Value | None:
    kind = s.pick(("simple_rnn", "gru", "lstm"))
    x = s.pick(s.sources(is_sequence))
    size = s.pick((1, 2))
    operands = [x]
    states = [v for v in s.sources(is_rows) if v.shape[1] == size]
    if states and s.pick((True, False)):
        operands += [s.pick(states) for _ in range(2 if kind == "lstm" else 1)]
    if s.pick((True, False)):
        operands.append(Value("length", INPUTS["length"]))
    attrs = {
        "size": size,
        "bias": s.pick((True, False)),
        "reverse": s.pick((True, False)),
    }
    results = s.add_multi_result_op(kind, operands, bound=2.0, **attrs)
    return s.pick(results) if results else None


def attention(s: Sketch) -> Value | None:
    """Attention over sequences, with or without projections."""
    query = s.pick(s.sources(is_sequence))
    width = int(query.shape[-1])
    keys = [v for v in s.sources(is_sequence) if v.shape[-1] == width]
    key = s.pick(keys)
    masks: list[list[Value]] = [[], [Value("length", INPUTS["length"])]]
    if key.shape[1] == 2:
        masks.append([Value("seen", INPUTS["seen"])])
    causal = {"causal": True} if s.pick((True, False)) else {}
    if s.pick((True, False)):
        inputs = s.pick(([query], [query, key]))
        if inputs == [query] and query.shape[1] != 2:
            masks = masks[:2]
        heads = {"heads": s.pick((1, 2)), "size": s.pick((2, 4))}
        bound = 4 * width * max(v.bound for v in inputs) + 2
        operands = [*inputs, *s.pick(masks)]
        return s.add_op(
            "multi_head_attention", operands, bound=bound, **heads, **causal
        )
    values = [v for v in s.sources(is_sequence) if v.shape[:2] == key.shape[:2]]
    value = s.pick(values)
    sizes = width, int(value.shape[-1])
    heads = {"heads": s.pick([h for h in (1, 2) if all(n % h == 0 for n in sizes)])}
    operands = [query, key, value, *s.pick(masks)]
    return s.add_op("attention", operands, bound=value.bound, **heads, **causal)


def position(s: Sketch) -> Value | None:
    x = s.pick(s.sources(is_sequence))
    kind = s.pick(("position_embedding", "positional_encoding"))
    return s.add_op(kind, [x], bound=x.bound + 1)


def call(s: Sketch) -> Value | None:
    """A user-defined function, with the batch rule `rows` or `whole`."""
    x = s.pick(s.sources(is_rows))
    width = int(x.shape[1])
    name = f"h{len(s.ops)}"
    rows = s.pick((True, False))
    if rows:
        size = s.pick((1, 2))
        shapes = {"w": (width, size)}
        outs = {name: TensorType("float32", (BATCH, size))}
        entry: dict[str, Any] = {"fn": "called:noisy", "batch": "rows"}
        entry["out"] = str(outs[name])
    else:
        shapes = {"scale": (width,), "mean": (width,)}
        outs = {
            f"{name}y": TensorType("float32", (BATCH, width)),
            f"{name}far": TensorType("float32", (BATCH,)),
        }
        entry = {"fn": "called:centred", "state": {"mean": _zeros_entry((width,))}}
        entry["out"] = [{out: str(type_)} for out, type_ in outs.items()]
    entry["params"] = {
        key: _zeros_entry(n) for key, n in shapes.items() if key != "mean"
    }
    parameters = [
        LayerParameter(key, TensorType("float32", shape), "zeros", key == "mean")
        for key, shape in shapes.items()
    ]
    bound = 1.0 if rows else 4 * width * x.bound**2
    results = s.add_entry(
        {"op": "call", **entry}, [x], outs, parameters, [], bound, False
    )
    return results[0] if results else None


def _zeros_entry(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"shape": list(shape), "init": "zeros"}


LAYERS = (
    *(fc,) * 5, *(embedding,) * 2, *(conv,) * 4, *(pool,) * 4, *(norm,) * 2,
    *(batch_norm,) * 3, *(dropout,) * 2, *(recurrent,) * 3, *(attention,) * 3, position,
    *(call,) * 2,
)  # fmt: skip
"""All layers, repeated according to how often each is drawn."""
