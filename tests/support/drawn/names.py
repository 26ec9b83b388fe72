"""One small model in every mode, whose inputs, ops, parameters, outputs, modules and
functions have any names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

ROWS = 20
"""With batches of 8 rows, the last batch of an epoch is a short one."""
VALUES = (
    *("x", "y", "key", "keys"),
    *("cell", "left", "right", "low", "high", "joined", "logits"),
    *("loss", "hits", "mine", "chance", "table", "looked", "several", "flat"),
)
"""The inputs, ops and results."""
PARAMETERS = ("weight", "offset")
MODULES = ("layers", "measures", "constants")
FUNCTIONS = ("affine", "margin")
INITIAL = {"file": "initial.safetensors"}
Spec = dict[str, Any]

LAYERS = """\
import jax.numpy as jnp
from {constants} import TWO


def {affine}(params, state, x, *, rng, training):
    weight, offset = params.values()
    z = x @ weight * TWO + offset
    return (jnp.tanh(z), jnp.sin(z)), state
"""
MEASURES = """\
import jax.numpy as jnp


def {margin}(logits, label):
    own = jnp.take_along_axis(logits, label[:, None], axis=-1)[:, 0]
    return own - jnp.mean(logits, axis=-1)
"""


def place(kind: str) -> str:
    return f"/node:{kind}"


def base(names: Mapping[str, str], *, second: str | None = None) -> Spec:
    """Return a model on two workers and two servers.

    Args:
        names: the name of each of `VALUES`, `PARAMETERS`, `MODULES` and `FUNCTIONS`.
        second: the place of the second half; by default that of the first.
    """
    n = names.__getitem__
    shapes = {n("weight"): [6, 5], n("offset"): [5]}
    first = [
        {
            "name": n("cell"),
            "op": "call",
            "in": n("x"),
            "fn": f"{n('layers')}:{n('affine')}",
            "params": {k: {"shape": s, "init": INITIAL} for k, s in shapes.items()},
            "batch": "rows",
            "out": [
                {n("left"): "float32[batch, 5]"},
                {n("right"): "float32[batch, 5]"},
            ],
        },
        {
            "name": n("low"),
            "op": "fc",
            "in": n("left"),
            "size": 5,
            "activation": "tanh",
        },
    ]
    loss = {"op": "softmax_cross_entropy", "in": [n("logits"), n("y")]}
    margin = {"op": "metric", "in": [n("logits"), n("y")]}
    last = [
        {"name": n("high"), "op": "fc", "in": n("low"), "size": 5},
        {"name": n("joined"), "op": "add", "in": [n("high"), n("right")]},
        {"name": n("logits"), "op": "fc", "in": n("joined"), "size": 3},
        {"name": n("loss"), **loss},
        {"name": n("hits"), "op": "accuracy", "in": [n("logits"), n("y")]},
        {"name": n("mine"), **margin, "fn": f"{n('measures')}:{n('margin')}"},
        {"name": n("chance"), "op": "softmax", "in": n("logits")},
    ]
    rows = {"source": "npz:rows.npz", "batch": 8, "remainder": "keep"}
    worker = place("worker")
    return {
        "name": "named",
        "nodes": {"worker": {"count": 2}, "ps": {"count": 2}},
        "inputs": {n("x"): "float32[batch, 6]", n("y"): "int32[batch]"},
        "data": {"train": {**rows, "shuffle": True, "seed": 3}, "eval": rows},
        "graph": [
            {"place": worker, "ops": first},
            {"place": second or worker, "ops": last},
        ],
        "parameters": [{"match": "*", "init": INITIAL}],
        "predict": {"outputs": [n("chance"), n("logits")]},
        "train": {
            "minimize": n("loss"),
            "epochs": 1,
            "metrics": [n("loss"), n("hits"), n("mine")],
            "clip": {"global_norm": 0.5},
            "slicing": {"min_block": 8},
            "optimizer": {"op": "adam", "learning_rate": 0.05, "place": place("ps")},
        },
    }


def update(
    *, needed: bool = True, **optimizer: Any
) -> Callable[[Mapping[str, str]], Spec]:
    """Return the model with other keys of the optimizer, and without servers unless
    they are `needed`."""

    def spec(names: Mapping[str, str]) -> Spec:
        made = base(names)
        made["train"]["optimizer"] |= optimizer
        if not needed:
            del made["nodes"]["ps"], made["train"]["slicing"]
        return made

    return spec


def backup(names: Mapping[str, str]) -> Spec:
    spec = base(names)
    spec["nodes"]["worker"]["count"] = 3
    for rows in spec["data"].values():
        rows["batch"] = 6
    spec["train"]["optimizer"]["update"] = {"sync": {"backup": 1}}
    return spec


def hybrid(names: Mapping[str, str]) -> Spec:
    spec = base(names)
    del spec["train"]["clip"]
    own = {"op": "sgd", "learning_rate": 0.05}
    spec["train"]["optimizer"] = [
        own | {"match": f"{names['cell']}.*", "place": place("ps"), "update": "async"},
        own | {"place": place("worker"), "clip": {"global_norm": 1.0}},
    ]
    return spec


def threads(names: Mapping[str, str]) -> Spec:
    spec = base(names)
    spec["nodes"] = {"worker": {"count": 1}, "ps": {"count": 1}}
    spec["train"] |= {"threads": 2}
    return spec


def pipeline(names: Mapping[str, str]) -> Spec:
    spec = base(names, second=place("worker:1"))
    spec["graph"][0]["place"] = place("worker:0")
    spec["train"] |= {"microbatches": 4, "schedule": "1f1b"}
    del (
        spec["train"]["optimizer"]["place"],
        spec["train"]["slicing"],
        spec["nodes"]["ps"],
    )
    for rows in spec["data"].values():
        rows["remainder"] = "drop"
    return spec


def microbatches(names: Mapping[str, str]) -> Spec:
    spec = base(names)
    spec["train"]["microbatches"] = 2
    return spec


def heter(names: Mapping[str, str], mode: Any = "sync") -> Spec:
    spec = base(names, second="/node:heter/gpu")
    spec |= {"emulate": True}
    spec["nodes"]["heter"] = {"count": 2, "devices": {"gpu": 1}}
    spec["train"]["clip"] = {"norm": 1.0}
    spec["train"]["optimizer"]["update"] = mode
    return spec


def free_heter(names: Mapping[str, str]) -> Spec:
    return heter(names, "async")


def devices(names: Mapping[str, str]) -> Spec:
    spec = base(names, second="/node:worker/gpu:0-1")
    spec["graph"][0]["place"] = "/node:worker/gpu:0-1"
    spec["nodes"] = {"worker": {"count": 1, "devices": {"cpu": 1, "gpu": 2}}}
    spec |= {"emulate": True}
    del spec["train"]["slicing"]
    spec["train"]["optimizer"]["place"] = "/node:worker/cpu"
    return spec


def other_devices(names: Mapping[str, str]) -> Spec:
    spec = devices(names)
    spec["nodes"]["worker"]["count"] = 2
    spec["graph"][0]["place"] = "/node:worker/gpu:0"
    spec["graph"][1]["place"] = "/node:worker/gpu:1"
    spec["train"]["optimizer"] |= {"place": "/node:worker/gpu:0", "op": "lamb"}
    del spec["train"]["clip"]
    return spec


def lamb(names: Mapping[str, str]) -> Spec:
    spec = base(names)
    spec["train"]["optimizer"]["op"] = "lamb"
    return spec


def server_ops(names: Mapping[str, str]) -> Spec:
    return base(names, second=place("ps"))


def frozen(names: Mapping[str, str]) -> Spec:
    spec = base(names)
    spec["parameters"].insert(
        0, {"match": f"{names['low']}.*", "trainable": False, "init": INITIAL}
    )
    return spec


def sparse(mode: Any = "sync", **train: Any) -> Callable[[Mapping[str, str]], Spec]:
    """Return the model with two sparse tables."""

    def spec(names: Mapping[str, str]) -> Spec:
        n = names.__getitem__
        made = base(names)
        made["inputs"] |= {n("key"): "int64[batch]", n("keys"): "int64[batch, 2]"}
        table = {"op": "embedding", "sparse": True}
        made["graph"][0]["ops"] += [
            {"name": n("looked"), "in": n("key"), "dim": 3} | table,
            {"name": n("several"), "in": n("keys"), "dim": 1} | table,
            {"name": n("flat"), "op": "flatten", "in": n("several")},
            {"name": n("table"), "op": "concat", "axis": 1}
            | {"in": [n("looked"), n("flat")]},
        ]
        high = made["graph"][1]["ops"][1]
        assert high["name"] == n("joined")
        high["in"] = [n("high"), n("table")]
        made["parameters"] = [
            {"match": f"{n(slot)}.table", "init": {"constant": value}}
            for slot, value in (("looked", 0.25), ("several", -0.5))
        ] + made["parameters"]
        made["train"]["optimizer"] |= {"op": "adagrad", "update": mode}
        made["train"] |= train
        return made

    return spec


GEO = {"geo": {"every": 2}}
OUTER = {"geo": {"every": 2, "outer": {"op": "sgd", "learning_rate": 0.7}}}
WORKERS = place("worker")
MODES: dict[str, Callable[[Mapping[str, str]], Spec]] = {
    "servers": base,
    "async": update(update="async"),
    "bounded": update(update={"async": {"max_staleness": 2, "max_merge": 2}}),
    "half_async": update(update="half_async"),
    "geo": update(update=GEO),
    "outer": update(update=OUTER),
    "backup": backup,
    "all_reduce": update(place=WORKERS, needed=False),
    "shard_state": update(place=WORKERS, needed=False, shard_state=True),
    "sum_server": update(place=WORKERS, sum=place("ps"), update="half_async"),
    "without_server": update(
        place=WORKERS, needed=False, update={"async": {"max_staleness": 2}}
    ),
    "hybrid": hybrid,
    "threads": threads,
    "pipeline": pipeline,
    "microbatches": microbatches,
    "heter": heter,
    "free_heter": free_heter,
    "devices": devices,
    "other_devices": other_devices,
    "lamb": lamb,
    "server_ops": server_ops,
    "frozen": frozen,
    "sparse": sparse(),
    "sparse_async": sparse("half_async"),
    "sparse_pipeline": sparse(microbatches=2),
}


def rows(names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the rows of all inputs."""
    rng = np.random.default_rng(0)
    values = {
        "x": rng.normal(size=(ROWS, 6)).astype(np.float32),
        "y": rng.integers(0, 3, ROWS).astype(np.int32),
        "key": rng.integers(0, 9, ROWS),
        "keys": rng.integers(0, 9, (ROWS, 2)),
    }
    return {names[slot]: array for slot, array in values.items()}


def initial(names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the initial values of all parameters but those of sparse tables."""
    rng = np.random.default_rng(1)
    shapes = {
        ("cell", names["weight"]): (6, 5),
        ("cell", names["offset"]): (5,),
        **{(op, "w"): (5, 5) for op in ("low", "high")},
        **{(op, "b"): (5,) for op in ("low", "high")},
        ("logits", "w"): (5, 3),
        ("logits", "b"): (3,),
    }
    return {
        f"{names[op]}.{key}": rng.normal(0, 0.5, shape).astype(np.float32)
        for (op, key), shape in shapes.items()
    }


def write_named(mode: str, names: Mapping[str, str], folder: Path) -> Path:
    """Write the model of a mode, its modules and its rows; return the spec."""
    spec = MODES[mode](names)
    given = rows(names)
    np.savez(folder / "rows.npz", **{name: given[name] for name in spec["inputs"]})
    save_file(initial(names), folder / INITIAL["file"])
    (folder / f"{names['layers']}.py").write_text(LAYERS.format_map(names))
    (folder / f"{names['measures']}.py").write_text(MEASURES.format_map(names))
    (folder / f"{names['constants']}.py").write_text("TWO = 2.0\n")
    file = folder / "named.yaml"
    file.write_text(json.dumps(spec, indent=1))
    return file
