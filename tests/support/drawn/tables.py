"""Random models with sparse tables, and clusters that they can be on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import placer
from support.drawn.table_rows import WIDTH, KeyPool, draw_rows

BATCH = 24
"""Workers of one or two threads, and the nodes of layers, share two microbatches of this
evenly."""
RULES: tuple[dict[str, Any], ...] = (
    {"op": "adagrad", "learning_rate": 0.3},
    {"op": "sgd", "learning_rate": 0.5},
    {"op": "adam", "learning_rate": 0.05},
    {"op": "momentum", "learning_rate": 0.2},
    {"op": "ftrl", "learning_rate": 0.3, "l1": 0.01, "l2": 0.1},
    {
        "op": "rowwise_adagrad",
        "learning_rate": {"exponential": {"init": 0.3, "rate": 0.7, "steps": 2}},
    },
)
"""Optimizers of tables. Each, with each `dim`, is compiled for seconds: the quick tests use
the first ones."""
QUICK_RULES = RULES[:3]
DENSE = ({"op": "sgd", "learning_rate": 0.3}, {"op": "adam", "learning_rate": 0.03})
CLIPS = ({"global_norm": 0.2}, {"norm": 0.1}, {"value": 0.02})


@dataclass(frozen=True)
class Cluster:
    """Nodes, and the places of lookups, of the layers behind them, of the tables and of
    the other parameters."""

    nodes: dict[str, Any]
    lookups: str = "/node:worker/cpu"
    layers: str = "/node:worker/cpu"
    tables: str = "/node:ps/cpu"
    dense: str = "/node:ps/cpu"
    threads: int = 1

    def with_servers(self, count: int) -> Cluster:
        """Return the cluster with another number of servers."""
        return replace(self, nodes={**self.nodes, "ps": {"count": count}})


@dataclass(frozen=True)
class TableModel:
    """A model with sparse tables.

    Attributes:
        inputs, lookups, tail: the inputs and the ops of the spec.
        optimizers: those of the spec without places, the last for the layers.
        data, train, parameters: what else the spec has.
        keys: draws the keys of an input of a dtype.
        count: the rows of the data.
    """

    inputs: dict[str, str]
    lookups: list[dict[str, Any]]
    tail: list[dict[str, Any]]
    optimizers: list[dict[str, Any]]
    data: dict[str, Any]
    train: dict[str, Any]
    parameters: list[dict[str, Any]]
    keys: KeyPool
    count: int

    def spec(self, cluster: Cluster) -> dict[str, Any]:
        """Return the spec of the model on a cluster."""
        *of_tables, dense = self.optimizers
        placed = [{**entry, "place": cluster.tables} for entry in of_tables]
        train = {
            **self.train,
            "optimizer": [*placed, {**dense, "place": cluster.dense}],
        }
        if cluster.threads > 1:
            train["threads"] = cluster.threads
        return {
            "name": "drawn",
            "precision": "float64",
            "nodes": cluster.nodes,
            "inputs": self.inputs,
            "data": self.data,
            "parameters": self.parameters,
            "graph": [
                {"place": cluster.lookups, "ops": self.lookups},
                {"place": cluster.layers, "ops": self.tail},
            ],
            "train": train,
        }

    def compile(
        self, cluster: Cluster, folder: Path, name: str, *, single_process: bool = False
    ) -> Path:
        """Write the spec and its rows to a folder; return the build."""
        np.savez(folder / "rows.npz", **draw_rows(self.inputs, self.keys, self.count))
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps(self.spec(cluster), indent=1))
        placer.compile(file, folder / name, single_process=single_process)
        return folder / name


@st.composite
def table_clusters(draw: Any) -> Cluster:
    """Draw a cluster: tables on servers or workers, and sometimes layers on heter nodes."""
    workers, servers = draw(st.integers(1, 3)), draw(st.sampled_from((0, 1, 2, 3, 3)))
    threads = draw(st.sampled_from((1, 1, 1, 2)))
    heter = draw(st.sampled_from((0, 0, 1, 2)))
    nodes: dict[str, Any] = {"worker": {"count": workers}}
    at_workers = ("/node:worker/cpu", "/node:worker:0/cpu")
    stored, layers = list(at_workers), list(at_workers)
    lookups = ["/node:worker/cpu"] * 3 + ["/node:worker:0/cpu"]
    if servers:
        nodes["ps"] = {"count": servers}
        stored = ["/node:ps/cpu"] * 4 + ["/node:ps:0/cpu", *at_workers]
        lookups.append("/node:ps:0/cpu")
    if heter:
        nodes["heter"] = {"count": heter, "devices": {"cpu": 1}}
        layers = ["/node:heter/cpu"]
    return Cluster(
        nodes,
        lookups=draw(st.sampled_from(lookups)),
        layers=draw(st.sampled_from(layers)),
        tables=draw(st.sampled_from(stored)),
        dense=draw(st.sampled_from(stored)),
        threads=threads,
    )


@st.composite
def _settings(draw: Any, dims: Sequence[int]) -> dict[str, Any]:
    """Draw the settings of a table, and the inputs that they need, as keys of its ops."""
    maybe = lambda *values: draw(st.sampled_from((None, None, *values)))  # noqa: E731
    partitions = draw(st.sampled_from((2, 4, 8)))
    # Sums of these are exact in float32, in any order, so no limit depends on rounding.
    score = maybe(
        {"show": 1, "show_weight": 0.25, "decay": 0.5},
        {"show": "shows", "click": "clicks", "show_weight": 0.25, "decay": 0.75},
    )
    admits: list[Any] = [
        *("always", "always", {"count": 2}, {"count": 5}),
        {"bloom": {"count": 3, "bytes": draw(st.sampled_from((512, 4096)))}},
        {"probability": 0.5},
    ]
    limits = {
        "unseen_steps": maybe(1, 2, 3),
        "unseen_seconds": maybe(15, 40),
        "norm_below": maybe(0.15, 0.4),
    }
    if score is not None:
        admits += [{"score": 0.5}, {"score": 1.5}]
        limits["score_below"] = maybe(0.1, 0.6)
    forget = {name: limit for name, limit in limits.items() if limit is not None}
    admit = draw(st.sampled_from(admits))
    if isinstance(admit, dict) and not _forgets_counted(admit, forget):
        forget["unseen_steps"] = 3
    if "unseen_seconds" in forget:
        forget["time"] = "time"
    if forget or score is not None:
        forget["every"] = draw(st.integers(1, 3))
    settings = {
        "partitions": partitions,
        "admit": admit,
        "score": score,
        "forget": forget or None,
        "capacity": maybe(partitions, partitions + 3, 3 * partitions),
        "bounds": maybe([-0.3, 0.4]),
    }
    given = {key: value for key, value in settings.items() if value is not None}
    if "capacity" in given:
        given["evict"] = draw(st.sampled_from(("lru", "lfu")))
    if given["admit"] != "always":
        given["default"] = draw(st.sampled_from((0.0, 0.25)))
    return {"sparse": True, "dim": draw(st.sampled_from(list(dims))), **given}


def _forgets_counted(admit: dict[str, Any], forget: dict[str, Any]) -> bool:
    """Whether a table that forgets rows also forgets keys that have none yet."""
    if not forget or not admit.keys() & {"count", "score"}:
        return True
    limits = {"unseen_steps", "unseen_seconds"}
    if "score" in admit:
        limits.add("score_below")
    return not limits.isdisjoint(forget)


@st.composite
def table_models(
    draw: Any,
    rules: Sequence[dict[str, Any]] = RULES,
    dims: Sequence[int] = (1, 3, 4),
) -> TableModel:
    """Draw a model of one or two tables, each used by one or two ops, which may look up
    keys that another op computes, and some layers."""
    keys = KeyPool(draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from((6, 12, 20))))
    tail_rows = draw(st.sampled_from((0, 0, 1, 7)))
    inputs = {"x": "float64[batch, 2]", "y": "int32[batch]"}
    parameters: list[dict[str, Any]] = []
    lookups: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    parts = ["x"]
    tables = draw(st.integers(1, 2))
    for table in range(tables):
        settings = draw(_settings(dims))
        name = f"t{table}.table"
        for use in range(draw(st.integers(1, 2))):
            op = f"t{table}" if use == 0 else f"t{table}_{use}"
            entry = draw(_lookup(op, keys, inputs))
            if draw(st.sampled_from((False, False, True))):
                lookups.append(_compute_keys(entry, inputs))
            lookups.append({**entry, **settings})
            if use:
                lookups[-1]["params"] = {"table": name}
            flat = {"name": f"{op}_flat", "op": "flatten", "in": op}
            rank = inputs[f"{op}_keys"].count(",") - ("combiner" in entry)
            parts.append(f"{op}_flat" if rank else op)
            lookups += [flat] if rank else []
        rule = draw(st.sampled_from(list(rules)))
        inits = ({"uniform": [-0.5, 0.5]}, {"normal": 0.2}, "ones")
        init = draw(st.sampled_from(("zeros",) if rule["op"] == "ftrl" else inits))
        parameter = {"match": name, "init": init}
        if draw(st.sampled_from((False,) * 7 + (True,))):
            parameter["trainable"] = False
        parameters.append(parameter)
        if "trainable" not in parameter:
            entries.append({**rule, "match": name})
    for name, dtype in {
        "shows": "float64",
        "clicks": "float64",
        "time": "int64",
    }.items():
        if f"'{name}'" in str(lookups):
            inputs[name] = f"{dtype}[batch]"
    train = _train(draw, entries)
    dense = dict(draw(st.sampled_from(DENSE)))
    return TableModel(
        inputs=inputs,
        lookups=lookups,
        tail=[
            {"name": "h", "op": "concat", "in": parts, "axis": 1},
            {"name": "a", "op": "tanh", "in": "h"},
            {"name": "z", "op": "fc", "in": "a", "size": 2},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        optimizers=[*entries, dense],
        data={
            "train": {
                "source": "npz:rows.npz",
                "batch": BATCH,
                "shuffle": draw(st.booleans()),
                "remainder": "keep" if tail_rows else "drop",
            },
            "eval": {"source": "npz:rows.npz", "batch": BATCH},
        },
        train=train,
        parameters=parameters,
        keys=keys,
        count=3 * BATCH + tail_rows,
    )


def _compute_keys(entry: dict[str, Any], inputs: dict[str, str]) -> dict[str, Any]:
    """Return an op with the keys of an op that looks up as its result; that takes them."""
    name = f"{entry['name']}_ids"
    first = entry["in"] if isinstance(entry["in"], str) else entry["in"][0]
    entry["in"] = name if isinstance(entry["in"], str) else [name, *entry["in"][1:]]
    shape = ["batch", WIDTH] if "," in inputs[first] else ["batch"]
    return {"name": name, "op": "reshape", "in": first, "shape": shape}


def _train(draw: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw the section `train` without its optimizers, whose clips are drawn."""
    train: dict[str, Any] = {"minimize": "loss", "epochs": 2, "metrics": ["loss"]}
    clip = draw(st.sampled_from((None, None, *CLIPS)))
    if clip is not None and draw(st.booleans()):
        train["clip"] = clip
    elif clip is not None:
        for entry in entries:
            entry["clip"] = clip
    if draw(st.sampled_from((False, False, True))):
        train["microbatches"] = 2
    return train


@st.composite
def _lookup(
    draw: Any, op: str, keys: KeyPool, inputs: dict[str, str]
) -> dict[str, Any]:
    """Draw an op that looks up keys, and add its inputs."""
    dtype = draw(st.sampled_from(("int64", "int64", "uint64", "int32")))
    combiner = draw(st.sampled_from(("none", "sum", "mean", "sqrtn")))
    several = combiner != "none" or draw(st.booleans())
    shape = f"[batch, {WIDTH}]" if several else "[batch]"
    entry: dict[str, Any] = {"name": op, "op": "embedding", "in": f"{op}_keys"}
    inputs[f"{op}_keys"] = f"{dtype}{shape}"
    if combiner != "none":
        entry["combiner"] = combiner
        if draw(st.booleans()):
            entry["in"] = [f"{op}_keys", f"{op}_weights"]
            inputs[f"{op}_weights"] = f"float64{shape}"
    if draw(st.booleans()):
        entry["padding"] = int(keys.of(dtype)[0])
    return entry
