"""Which ops move together, and which stay."""

from __future__ import annotations

import pytest
from support.plain.specs import SPECS

from placer.compiler.frontend.python.read import read_model
from placer.compiler.graph.text import parse_graph
from placer.compiler.placing.groups import Movable, movable_groups


def test_an_op_has_its_own_group_and_its_parameters() -> None:
    groups = _groups("mlp_pipeline")
    assert [group.name for group in groups][:4] == ["pixels", "h1", "h2", "h3"]
    assert groups[1] == Movable("h1", ("h1",), ("h1.w", "h1.b"))
    assert all(group.is_free for group in groups)


def test_parts_of_a_composite_and_its_states_are_one_group() -> None:
    groups = {group.name: group for group in _groups("digits_cnn")}
    assert groups["thinned.dropped"].ops == ("thinned.dropped", "thinned")
    norm = groups["norm1.mean"]
    assert norm.ops[-2:] == ("norm1.running_mean.new", "norm1.running_variance.new")
    assert "norm1.running_mean" in norm.parameters


SHARED = """
graph @shared nodes(worker: 2, ps: 1) batch(8) {
  %x: float32[batch, 4] = read() {input = x}
  %w: float32[4, 4] = parameter() {init = zeros}
  %h1: float32[batch, 4] = matmul(%x, %w)
  %r1: float32[batch, 4] = relu(%h1) %PLACE%
  %h2: float32[batch, 4] = matmul(%r1, %w)
  %r2: float32[batch, 4] = relu(%h2)
}
"""


def test_ops_that_share_a_parameter_are_one_group_with_all_between_them() -> None:
    groups = movable_groups(parse_graph(SHARED.replace("%PLACE%", "")))
    assert [group.ops for group in groups] == [("h1", "r1", "h2"), ("r2",)]


def test_an_op_at_a_server_stays_between_ops_that_move() -> None:
    text = SHARED.replace("%PLACE%", "@/node:ps/cpu")
    assert movable_groups(parse_graph(text)) == (
        Movable("h1", ("h1", "h2"), ("w",)),
        Movable("r1", ("r1",), why_fixed="r1: it is at /node:ps/cpu"),
        Movable("r2", ("r2",)),
    )


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("digits_async", "asynchronous"),
        ("digits_geo", "asynchronous"),
        ("digits_backup", "backup workers"),
    ],
)
def test_no_op_moves_if_workers_do_not_wait(spec: str, reason: str) -> None:
    assert all(reason in group.why_fixed for group in _groups(spec))


def test_only_lookups_of_sparse_tables_stay() -> None:
    fixed = [group.name for group in _groups("wide_deep_sparse") if not group.is_free]
    assert fixed == ["wide", "vectors"]


def test_fixed_patterns_name_ops() -> None:
    fixed = [g.name for g in _groups("mlp_pipeline", "h[12]") if not g.is_free]
    assert fixed == ["h1", "h2"]


def _groups(spec: str, *fix: str) -> tuple[Movable, ...]:
    return movable_groups(read_model(SPECS / f"{spec}.yaml").graph, fix)
