"""Random modes: how the workers of a drawn model agree on the updates of each group."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from support.drawn.graphs import DrawnModel, models
from support.drawn.training import CLIPS, EXCHANGES
from support.plain.graph import flatten_ops

FAMILIES = ("servers", "workers", "geo", "backup", "heter")
"""What the first group of a model has: servers that update, workers that do, values of
each worker's own, backup workers, or servers that update with ops on heter nodes."""
AT_SERVERS = "/node:ps/cpu"
OUTER: tuple[Any, ...] = (
    *(None,) * 3,
    {"op": "sgd", "learning_rate": 1.0},
    {"op": "nesterov", "learning_rate": 0.7, "momentum": 0.8},
    {
        "op": "momentum",
        "learning_rate": {"exponential": {"init": 0.7, "rate": 0.5, "steps": 2}},
    },
)


@st.composite
def pushed(draw: Any) -> dict[str, Any]:
    """Draw a mode of servers that apply what workers push."""
    if draw(st.sampled_from((True, False, False))):
        return {"update": "half_async"}
    settings = draw(_queued(st.sampled_from(("none", 1, 2))))
    settings["staleness_scale"] = draw(st.booleans())
    if draw(st.booleans()):
        settings["compensate"] = draw(st.sampled_from((0.04, 2.0)))
        del settings["max_merge"]
    return {"update": {"async": settings}}


@st.composite
def at_workers(draw: Any, workers: int) -> dict[str, Any]:
    """Draw a mode of workers that update: without a server, or with one that sums."""
    if workers == 1 or draw(st.booleans()):
        bound, queue = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        return {"update": {"async": {"max_staleness": bound, "queue": queue}}}
    summed = {"sum": draw(st.sampled_from(("/node:ps", "/node:ps:0/cpu")))}
    if draw(st.sampled_from((True, False, False))):
        return {"update": "half_async", **summed}
    settings = draw(_queued(st.sampled_from(("none", 1, 2))))
    return {"update": {"async": settings}, **summed}


@st.composite
def _queued(draw: Any, bounds: Any) -> dict[str, Any]:
    """Draw how far workers may be ahead, and which gradients wait together."""
    bound = draw(bounds)
    return {
        "max_staleness": bound,
        "queue": draw(st.integers(1, 3)),
        "max_merge": draw(st.integers(1, 3 if bound == "none" else bound + 1)),
        "merge": draw(st.sampled_from(("sum", "mean"))),
    }


@st.composite
def differences(draw: Any) -> dict[str, Any]:
    """Draw a mode of workers with values of their own."""
    settings: dict[str, Any] = {"every": draw(st.integers(1, 3))}
    dtype, outer = (
        draw(st.sampled_from((None, "bfloat16"))),
        draw(st.sampled_from(OUTER)),
    )
    if dtype is not None:
        settings["dtype"] = dtype
    if outer is not None:
        settings["outer"] = outer
    else:
        settings["scale"] = draw(st.sampled_from(("mean", "sum")))
    return {"update": {"geo": settings}}


@st.composite
def models_without_lockstep(draw: Any, families: tuple[str, ...]) -> DrawnModel:
    """Draw a model whose ops are on all workers, and of which some parameters, or all,
    are updated without lockstep, or with backup workers. It is of one of the families.

    With heter nodes, some of the ops are on these. Batches are full. The batch
    normalization of a worker is over its own rows; there are no microbatches then.
    """
    drawn = draw(models())
    family = draw(st.sampled_from(families))
    assume(family != "backup" or drawn.spec["nodes"]["worker"]["count"] > 1)
    spec = copy.deepcopy(drawn.spec)
    entries = flatten_ops(spec["graph"])
    normalized = False
    for entry in entries:
        entry.pop("place", None)
        if entry["op"] == "batch_norm":
            entry["scope"], normalized = "replica", True
    spec["graph"] = [{"place": "/node:worker", "ops": spec["graph"]}]
    workers = spec["nodes"]["worker"]
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
        train.pop("microbatches", None)
        train.pop("schedule", None)
    _draw_modes(draw, spec, family)
    return DrawnModel(spec, drawn.shapes, drawn.train_rows, drawn.eval_rows, drawn.seed)


def _draw_modes(draw: Any, spec: dict[str, Any], family: str) -> None:
    train, nodes = spec["train"], spec["nodes"]
    entries = train["optimizer"]
    entries = [entries] if isinstance(entries, dict) else entries
    workers = nodes["worker"]["count"]
    backup = {"sync": {"backup": draw(st.integers(1, max(1, workers - 1)))}}
    for i, entry in enumerate(entries):
        for key in ("shard_state", "all_reduce", "sum", "update", "place"):
            entry.pop(key, None)
        if family == "backup":
            entry |= {"place": AT_SERVERS, "update": backup}
            continue
        others = ("servers", "lockstep", "all_reduce")
        if family != "heter":
            others += ("workers", "geo")
        how = draw(st.sampled_from(others)) if i else family
        if how == "workers":
            entry |= {"place": "/node:worker", **draw(at_workers(workers))}
        elif how == "geo":
            entry |= {"place": AT_SERVERS, **draw(differences())}
        elif how == "lockstep":
            entry |= {"place": "/node:ps", "update": "sync"}
        elif how == "all_reduce":
            entry["place"] = "/node:worker"
            if workers > 1:
                entry |= draw(st.sampled_from(EXCHANGES))
        else:
            entry |= {"place": AT_SERVERS, **draw(pushed())}
            if "gpu" in str(nodes["ps"]) and "compensate" not in str(entry):
                entry["place"] = draw(st.sampled_from((AT_SERVERS, "/node:ps/gpu:0")))
    several = len(entries) > 1 or family == "heter"
    if several and family != "backup" and "global_norm" in train.get("clip", {}):
        train["clip"] = draw(st.sampled_from([c for c in CLIPS if "norm" in c]))
    if any(entry["op"] in ("lamb", "lars") for entry in entries):
        train["slicing"]["dispatch"] = "balanced"
