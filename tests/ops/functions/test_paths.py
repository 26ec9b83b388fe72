"""Paths of leaves: a value in a State of Equinox has the name of its layer."""

from __future__ import annotations

import equinox
import jax

from placer.ops.functions.paths import leaves_with_paths


class Layers(equinox.Module):
    first: equinox.nn.BatchNorm
    others: list[equinox.nn.BatchNorm]

    def __init__(self) -> None:
        self.first = equinox.nn.BatchNorm(4, "rows", mode="ema")
        self.others = [equinox.nn.BatchNorm(4, "rows", mode="batch")]


def test_a_part_of_a_state_has_the_names_of_the_whole_state() -> None:
    model, state = equinox.nn.make_with_state(Layers)()
    leaves = leaves_with_paths({"state": state})
    assert [".".join(path) for path, _ in leaves] == [
        "state.first.ema_first_time_index",
        "state.first.ema_state_index.0",
        "state.first.ema_state_index.1",
        "state.others.0.batch_counter",
        "state.others.0.batch_state_index.0",
        "state.others.0.batch_state_index.1",
    ]
    assert [leaf for _, leaf in leaves] == jax.tree.leaves(state)
    part = leaves_with_paths({"state": state.substate(model.others)})
    assert [path for path, _ in part] == [path for path, _ in leaves[3:]]
