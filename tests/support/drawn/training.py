"""Random sections `train`: optimizers and their places, schedules, clipping,
slicing."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from support.drawn.clusters import (
    DrawnCluster,
    optimizer_places,
    places_of_several,
)

_COSINE = {"cosine": {"init": 0.05, "steps": 4}}
SCHEDULES: tuple[Any, ...] = (
    0.05,
    0.02,
    {"exponential": {"init": 0.05, "rate": 0.5, "steps": 2}},
    {"exponential": {"init": 0.05, "rate": 0.5, "steps": 2, "staircase": True}},
    {"natural_exp": {"init": 0.05, "rate": 0.5, "steps": 2}},
    {"natural_exp": {"init": 0.05, "rate": 0.5, "steps": 2, "staircase": True}},
    {"inverse_time": {"init": 0.05, "rate": 0.5, "steps": 2}},
    {"inverse_time": {"init": 0.05, "rate": 0.5, "steps": 2, "staircase": True}},
    {"linear": {"init": 0.05, "end": 0.01, "steps": 3}},
    {"polynomial": {"init": 0.05, "end": 0.01, "steps": 3, "power": 2}},
    {"polynomial": {"init": 0.05, "end": 0.01, "steps": 2, "cycle": True}},
    _COSINE,
    {"cosine": {"init": 0.05, "steps": 3, "alpha": 0.1}},
    {"piecewise": {"boundaries": [1, 3], "values": [0.05, 0.02, 0.04]}},
    {"noam": {"size": 16, "warmup": 2, "factor": 0.3}},
    {"warmup": {"steps": 3, "from": 0.01, "then": 0.05}},
    {"warmup": {"steps": 2, "then": _COSINE}},
    {"linear_scaling": {"batch": 12, "base_batch": 8, "then": 0.03}},
    {"linear_scaling": {"batch": 12, "base_batch": 8, "warmup": 2, "then": _COSINE}},
)
_SMALL = {"eps": 1e-6}
"""A larger epsilon: adam must not scale up a gradient that is only rounding errors."""
RULES: tuple[dict[str, Any], ...] = (
    {"op": "sgd"},
    {"op": "momentum"},
    {"op": "momentum", "momentum": 0.5},
    {"op": "nesterov"},
    {"op": "adagrad"},
    {"op": "adagrad", "initial_accumulator_value": 0.5, "eps": 1e-5},
    {"op": "rmsprop"},
    {"op": "rmsprop", "centered": True, "initial_scale": 0.5, "eps": 1e-4},
    {"op": "rmsprop", "momentum": 0.8, "decay": 0.7},
    {"op": "adadelta", "rho": 0.8},
    {"op": "adam"},
    {"op": "adam", "b1": 0.8, "b2": 0.9, **_SMALL},
    {"op": "adamw", "weight_decay": 0.3, **_SMALL},
    {"op": "adamax", **_SMALL},
    {"op": "nadam", **_SMALL},
    {"op": "lion", "weight_decay": 0.3},
    {"op": "lamb", "weight_decay": 0.2},
    {"op": "lamb"},
    {"op": "lars", "trust_coefficient": 0.2, "weight_decay": 0.2},
    {"op": "lars", "trust_coefficient": 0.2, "eps": 1e-3, "momentum": 0.5},
)
CLIPS = (
    {"global_norm": 0.05},
    {"global_norm": 1.0},
    {"global_norm": 100.0},
    {"norm": 0.05},
    {"norm": 1.0},
    {"value": 0.01},
    {"value": 0.3},
)

BUCKETS = (None, 1e-6, 1e-4, 25)
"""MiB: no buckets, one for each op, one for several, one for all."""
EXCHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"shard_state": True},
    {"all_reduce": "ring"},
    {"shard_state": True, "all_reduce": "ring"},
)
"""What an optimizer on several workers can do with gradients."""
SYNCHRONOUS: tuple[dict[str, Any], ...] = (
    {},
    {"update": "sync"},
    {"update": {"sync": {"backup": 0}}},
    {"update": {"async": {"max_staleness": 0}}},
)
"""What an optimizer on servers can say, without changing the result."""


@st.composite
def training(
    draw: Any, cluster: DrawnCluster, trained: list[str], loss: str, metrics: list[str]
) -> dict[str, Any]:
    """Draw the section `train` of a spec with these trainable parameters."""
    recipe: dict[str, Any] = {"minimize": loss, "epochs": 1, "metrics": metrics}
    if cluster.threads > 1:
        recipe["threads"] = cluster.threads
    if cluster.microbatches > 1:
        recipe["microbatches"] = cluster.microbatches
        recipe["schedule"] = draw(st.sampled_from(("1f1b", "gpipe")))
    clip = draw(st.sampled_from(("no", "all", "group")))
    if clip == "all":
        recipe["clip"] = draw(st.sampled_from(CLIPS))
    recipe["slicing"] = {
        "min_block": draw(st.sampled_from((1, 2, 3, 8))),
        "rounding": draw(st.sampled_from(("ceil", "floor"))),
        "dispatch": draw(
            st.sampled_from(("balanced", "round_robin", "hash", "merged"))
        ),
    }
    entries = [draw(_entry(cluster))]
    if len(trained) > 1:
        some = draw(st.lists(st.sampled_from(trained), max_size=2, unique=True))
        if len(some) < len(trained):
            entries = [{**draw(_entry(cluster)), "match": n} for n in some] + entries
    if clip == "group":
        for entry in entries[-draw(st.sampled_from((1, 2))) :]:
            entry["clip"] = draw(st.sampled_from(CLIPS))
    at_servers = any(_is_on_servers(cluster, entry) for entry in entries)
    if cluster.microbatches == 1 and at_servers:
        cap = draw(st.sampled_from(BUCKETS))
        recipe |= {} if cap is None else {"bucket_cap_mb": cap}
    one = len(entries) == 1 and draw(st.booleans())
    recipe["optimizer"] = entries[0] if one else entries
    return recipe


@st.composite
def _entry(draw: Any, cluster: DrawnCluster) -> dict[str, Any]:
    entry = dict(draw(st.sampled_from(RULES)))
    entry["learning_rate"] = draw(st.sampled_from(SCHEDULES))
    place = draw(st.sampled_from(optimizer_places(cluster)))
    if place is not None:
        entry["place"] = place
        if place in places_of_several(cluster):
            entry |= draw(st.sampled_from(exchanges(cluster, place)))
        elif place.startswith("/node:ps"):
            entry |= draw(st.sampled_from(SYNCHRONOUS))
    return entry


def _is_on_servers(cluster: DrawnCluster, entry: dict[str, Any]) -> bool:
    place = entry.get("place")
    return bool(cluster.servers) if place is None else place.startswith("/node:ps")


def exchanges(cluster: DrawnCluster, place: str) -> list[dict[str, Any]]:
    """Return what an optimizer on several nodes can do with gradients."""
    if not cluster.servers or not place.startswith("/node:worker"):
        return [*EXCHANGES]
    return [*EXCHANGES, {"sum": "/node:ps/cpu"}]
