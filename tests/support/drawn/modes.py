"""Random modes: how the workers of a drawn model agree on the updates of each group."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from support.drawn.graphs import DrawnModel, models
from support.drawn.training import CLIPS, EXCHANGES
from support.plain.graph import flatten_ops


@st.composite
def modes(draw: Any) -> dict[str, Any]:
    """Draw the settings of a mode without lockstep."""
    if draw(st.sampled_from((True, False, False))):
        return {"update": "half_async"}
    bound = draw(st.sampled_from(("none", 1, 2)))
    settings: dict[str, Any] = {
        "max_staleness": bound,
        "queue": draw(st.integers(1, 3)),
    }
    settings["staleness_scale"] = draw(st.booleans())
    if draw(st.booleans()):
        settings["compensate"] = draw(st.sampled_from((0.04, 2.0)))
    else:
        settings["max_merge"] = draw(
            st.integers(1, 3 if bound == "none" else bound + 1)
        )
        settings["merge"] = draw(st.sampled_from(("sum", "mean")))
    return {"update": {"async": settings}}


@st.composite
def models_without_lockstep(draw: Any) -> DrawnModel:
    """Draw a model whose ops are on all workers, and of which some parameters, or all,
    are updated without lockstep.

    Batches are full. The batch normalization of a worker is over its own rows; there
    are no microbatches then.
    """
    drawn = draw(models())
    spec = copy.deepcopy(drawn.spec)
    spec["graph"] = [{"place": "/node:worker", "ops": spec["graph"]}]
    normalized = False
    for entry in flatten_ops(spec["graph"]):
        entry.pop("place", None)
        if entry["op"] == "batch_norm":
            entry["scope"], normalized = "replica", True
    servers = spec["nodes"].get("ps", {"count": draw(st.integers(1, 3))})
    spec["nodes"] = {"worker": spec["nodes"]["worker"], "ps": servers}
    spec["data"]["train"]["remainder"] = "drop"
    train = spec["train"]
    if normalized:
        train.pop("microbatches", None)
        train.pop("schedule", None)
    _draw_modes(draw, spec)
    return DrawnModel(spec, drawn.shapes, drawn.train_rows, drawn.eval_rows, drawn.seed)


def _draw_modes(draw: Any, spec: dict[str, Any]) -> None:
    train = spec["train"]
    entries = train["optimizer"]
    entries = [entries] if isinstance(entries, dict) else entries
    for i, entry in enumerate(entries):
        for key in ("shard_state", "all_reduce", "sum", "update", "place"):
            entry.pop(key, None)
        how = draw(st.sampled_from(("free", "free", "servers", "workers")))
        if how == "free" or i == 0:
            entry |= {"place": "/node:ps/cpu"} | draw(modes())
            if "gpu" in str(spec["nodes"]["ps"]) and "compensate" not in str(entry):
                entry["place"] = draw(
                    st.sampled_from(("/node:ps/cpu", "/node:ps/gpu:0"))
                )
        elif how == "servers":
            entry |= {"place": "/node:ps", "update": "sync"}
        else:
            entry["place"] = "/node:worker"
            if spec["nodes"]["worker"]["count"] > 1:
                entry |= draw(st.sampled_from(EXCHANGES))
    if len(entries) > 1 and "global_norm" in train.get("clip", {}):
        train["clip"] = draw(st.sampled_from([c for c in CLIPS if "norm" in c]))
    if any(entry["op"] in ("lamb", "lars") for entry in entries):
        train["slicing"]["dispatch"] = "balanced"
