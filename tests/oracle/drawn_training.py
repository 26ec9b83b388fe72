"""Drawn recipes: optimizers and where they stand, schedules, clipping, slicing."""

from __future__ import annotations

from typing import Any

from drawn_clusters import Layout, places_of_optimizers
from hypothesis import strategies as st

SCHEDULES: tuple[Any, ...] = (
    0.05,
    0.02,
    {"exponential": {"init": 0.05, "rate": 0.5, "steps": 2}},
    {"exponential": {"init": 0.05, "rate": 0.5, "steps": 2, "staircase": True}},
    {"cosine": {"init": 0.05, "steps": 4}},
    {"cosine": {"init": 0.05, "steps": 3, "alpha": 0.1}},
    {"warmup": {"steps": 3, "from": 0.01, "then": 0.05}},
    {"warmup": {"steps": 2, "then": {"cosine": {"init": 0.05, "steps": 4}}}},
)
RULES: tuple[dict[str, Any], ...] = (
    {"op": "sgd"},
    {"op": "momentum"},
    {"op": "momentum", "momentum": 0.5},
    {"op": "adam"},
    {"op": "adam", "b1": 0.8, "b2": 0.9, "eps": 1e-6},
)
NORMS = (0.05, 1.0, 100.0)


@st.composite
def training(
    draw: Any, cluster: Layout, trained: list[str], loss: str, metrics: list[str]
) -> dict[str, Any]:
    """The section `train` of a spec with these trainable parameters."""
    recipe: dict[str, Any] = {"minimize": loss, "epochs": 1, "metrics": metrics}
    clip = draw(st.sampled_from(("no", "all", "group")))
    if clip == "all":
        recipe["clip"] = {"global_norm": draw(st.sampled_from(NORMS))}
    recipe["slicing"] = {
        "min_block": draw(st.sampled_from((1, 2, 3, 8))),
        "rounding": draw(st.sampled_from(("ceil", "floor"))),
        "dispatch": draw(
            st.sampled_from(("balanced", "round_robin", "hash", "merged"))
        ),
    }
    entries = [draw(_entry(cluster))]
    if len(trained) > 1 and draw(st.booleans()):
        entries.insert(
            0, {**draw(_entry(cluster)), "match": draw(st.sampled_from(trained))}
        )
    if clip == "group":
        entries[-1]["clip"] = {"global_norm": draw(st.sampled_from(NORMS))}
    one = len(entries) == 1 and draw(st.booleans())
    recipe["optimizer"] = entries[0] if one else entries
    return recipe


@st.composite
def _entry(draw: Any, cluster: Layout) -> dict[str, Any]:
    entry = dict(draw(st.sampled_from(RULES)))
    entry["learning_rate"] = draw(st.sampled_from(SCHEDULES))
    place = draw(st.sampled_from(places_of_optimizers(cluster)))
    if place is not None:
        entry["place"] = place
    return entry
