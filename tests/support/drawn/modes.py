"""Random modes: how the workers of a drawn model agree on the updates of each group."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from support.drawn.graphs import DrawnModel, models
from support.drawn.training import BUCKETS, CLIPS, EXCHANGES
from support.plain.graph import flatten_ops

Settings = dict[str, Any]
"""Keys of an optimizer: its place, how workers agree, and how gradients are exchanged."""
AT_SERVERS = st.sampled_from(("/node:ps/cpu", "/node:ps/gpu:0"))
"""Places of an optimizer on servers; a cluster without GPUs has only the first one."""
_BOUNDS = st.sampled_from(("none", 1, 2))
_OUTER = st.sampled_from(
    (
        *(None,) * 3,
        {"op": "sgd", "learning_rate": 1.0},
        {"op": "nesterov", "learning_rate": 0.7, "momentum": 0.8},
        {
            "op": "momentum",
            "learning_rate": {"exponential": {"init": 0.7, "rate": 0.5, "steps": 2}},
        },
    )
)


@st.composite
def _async(draw: Any) -> Settings:
    """Draw how far workers may be ahead, and which gradients wait together."""
    bound = draw(_BOUNDS)
    most = draw(st.integers(1, 3 if bound == "none" else bound + 1))
    merges = ("sum", "mean") if most > 1 else ("sum",)
    return {
        "max_staleness": bound,
        "queue": draw(st.integers(1, 3)),
        "max_merge": most,
        "merge": draw(st.sampled_from(merges)),
    }


@st.composite
def at_servers(draw: Any) -> Settings:
    """Draw a mode of servers that apply what workers push."""
    place = draw(AT_SERVERS)
    if draw(st.sampled_from((True, False, False))):
        return {"place": place, "update": "half_async"}
    settings = draw(_async())
    settings["staleness_scale"] = draw(st.booleans())
    if draw(st.booleans()):
        place, settings["max_merge"], settings["merge"] = "/node:ps/cpu", 1, "sum"
        settings["compensate"] = draw(st.sampled_from((0.04, 2.0)))
    return {"place": place, "update": {"async": settings}}


@st.composite
def at_workers(draw: Any) -> Settings:
    """Draw a mode of workers that update: without a server, or with one that sums."""
    place = {"place": "/node:worker"}
    if draw(st.booleans()):
        bound, queue = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        return place | {"update": {"async": {"max_staleness": bound, "queue": queue}}}
    place["sum"] = draw(st.sampled_from(("/node:ps", "/node:ps:0/cpu")))
    if draw(st.sampled_from((True, False, False))):
        return place | {"update": "half_async"}
    return place | {"update": {"async": draw(_async())}}


@st.composite
def differences(draw: Any) -> Settings:
    """Draw a mode of workers with values of their own."""
    settings: Settings = {"every": draw(st.integers(1, 3))}
    dtype, outer = draw(st.sampled_from((None, "bfloat16"))), draw(_OUTER)
    if dtype is not None:
        settings["dtype"] = dtype
    if outer is not None:
        settings["outer"] = outer
    else:
        settings["scale"] = draw(st.sampled_from(("mean", "sum")))
    return {"place": draw(AT_SERVERS), "update": {"geo": settings}}


@st.composite
def backup(draw: Any) -> Settings:
    """Draw how many workers a step does not wait for."""
    settings = {"backup": draw(st.sampled_from((1, 1, 2, 3)))}
    return {"place": draw(AT_SERVERS), "update": {"sync": settings}}


@st.composite
def synchronous(draw: Any) -> Settings:
    """Draw how synchronous workers exchange gradients."""
    if draw(st.booleans()):
        return {"place": "/node:ps", "update": "sync"}
    return {"place": "/node:worker", **draw(st.sampled_from(EXCHANGES))}


_MODES = {
    "servers": at_servers(),
    "workers": at_workers(),
    "geo": differences(),
    "backup": backup(),
    "heter": at_servers(),
    "synchronous": synchronous(),
}
FAMILIES = ("servers", "workers", "geo", "backup", "heter")
"""What the first group of a model has: servers that update, workers that do, values of
each worker's own, backup workers, or servers that update while some ops are on heter
nodes."""
_BESIDE = {
    **dict.fromkeys(
        FAMILIES, ("servers", "workers", "geo", "synchronous", "synchronous")
    ),
    "backup": (),
    "heter": ("servers", "synchronous"),
}
"""What other groups of a model may have; none means the same as the first one."""


@st.composite
def asynchronous_models(draw: Any, families: tuple[str, ...]) -> DrawnModel:
    """Draw a model of one of the families, with several workers. Its ops are on all of
    them, and some parameters, or all, are updated asynchronously, or with backup workers.

    With heter nodes, some of the ops are on these. Batches are full, and most epochs have
    several steps, at whose end all drain. The batch normalization of a worker is over its
    own rows; there are no microbatches then.
    """
    family = draw(st.sampled_from(families))
    first = draw(_MODES[family])
    drawn = draw(models())
    spec = copy.deepcopy(drawn.spec)
    workers = spec["nodes"]["worker"]
    assume(workers["count"] > max(1, _backup_of(first)))
    entries = flatten_ops(spec["graph"])
    normalized = False
    for entry in entries:
        entry.pop("place", None)
        if entry["op"] == "batch_norm":
            entry["scope"], normalized = "replica", True
    spec["graph"] = [{"place": "/node:worker", "ops": spec["graph"]}]
    servers = spec["nodes"].get("ps", {"count": draw(st.integers(1, 3))})
    spec["nodes"] = {"worker": workers, "ps": servers}
    train = spec["train"]
    if family == "heter":
        count = draw(st.integers(1, workers["count"] * train.get("threads", 1)))
        spec["nodes"]["heter"] = {"count": count, "devices": {"cpu": 1}}
        start = draw(st.integers(0, len(entries) - 1))
        stop = draw(st.integers(start + 1, len(entries)))
        for entry in entries[start:stop]:
            if entry["op"] != "parameter":  # that is where its optimizer is
                entry["place"] = "/node:heter"
    spec["data"]["train"]["remainder"] = "drop"
    if normalized:
        spec["train"].pop("microbatches", None)
        spec["train"].pop("schedule", None)
    _draw_modes(draw, spec, first, _BESIDE[family])
    batch = spec["data"]["train"]["batch"]
    steps = draw(st.sampled_from((5, 3, 2)))
    rows = steps * batch + drawn.train_rows % batch
    return DrawnModel(spec, drawn.shapes, rows, drawn.eval_rows, drawn.seed)


def _backup_of(settings: Settings) -> int:
    update = settings.get("update")
    sync = update.get("sync", {}) if isinstance(update, dict) else {}
    return int(sync.get("backup", 0))


def _draw_modes(
    draw: Any, spec: dict[str, Any], first: Settings, beside: tuple[str, ...]
) -> None:
    """Give each optimizer a place and a mode."""
    train, nodes = spec["train"], spec["nodes"]
    entries = train["optimizer"]
    entries = [entries] if isinstance(entries, dict) else entries
    for i, entry in enumerate(entries):
        for key in ("shard_state", "all_reduce", "sum", "update", "place"):
            entry.pop(key, None)
        same = i == 0 or not beside
        entry |= first if same else draw(_MODES[draw(st.sampled_from(beside))])
        if "devices" not in nodes["ps"]:
            entry["place"] = entry["place"].replace("gpu:0", "cpu")
    several = len(entries) > 1 or "heter" in nodes
    if several and beside and "global_norm" in train.get("clip", {}):
        train["clip"] = draw(st.sampled_from([c for c in CLIPS if "norm" in c]))
    train.pop("bucket_cap_mb", None)  # it is for synchronous groups on servers
    synchronous = any(entry.get("update") == "sync" for entry in entries)
    if synchronous and "microbatches" not in train:
        cap = draw(st.sampled_from(BUCKETS))
        train |= {} if cap is None else {"bucket_cap_mb": cap}
    if any(entry["op"] in ("lamb", "lars") for entry in entries):
        train["slicing"]["dispatch"] = "balanced"
