"""The facts of the placement picture are those of the plan, for all specs."""

from __future__ import annotations

import functools
import runpy
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from support.drawn.graphs import DrawnModel, models
from support.marks import MAY_PAIR_ROWS
from support.run_ways import write_spec

import placer
import placer.report.page.placement as placement_module
from placer.compiler.build_or_spec import LoadedBuild, load_build
from placer.compiler.driver import compile_in_memory, compile_prediction
from placer.compiler.frontend import load_text
from placer.errors import GraphError
from placer.report.explain import BuildInfo, explain
from placer.report.layers import INPUT, find_layers
from placer.report.page.arrows import share, weigh_edge
from placer.report.page.columns import MAX_COLUMNS
from placer.report.page.details import list_details
from placer.report.page.facts import Box, Placement
from placer.report.page.placement import PlacedGraph, draw, place, placement_of
from placer.report.server_tables import block_bytes, item_bytes
from placer.report.step.facts import SentBytes, StepTime
from placer.system.resources import find_file

SPECS = Path(find_file("specs"))
NAMES = [*sorted(file.name for file in SPECS.glob("*.yaml")), "digits.py:build"]


@functools.cache
def build_of(name: str) -> LoadedBuild:
    return load_build(Path(f"{SPECS}/{name}"))


@functools.cache
def placed_spec(name: str) -> PlacedGraph:
    return place(build_of(name))


def placed_text(text: str, folder: Path) -> PlacedGraph:
    build = compile_in_memory(load_text(text, str(folder / "spec.yaml"), folder))
    return place(LoadedBuild(folder, build.plan, build.files_in(folder).__getitem__))


def boxes_of_group(placed: PlacedGraph, group: int) -> list[int]:
    """Return the boxes of a group of equal nodes, before columns share a column."""
    columns = placed.columns.columns
    return [
        number
        for number, box in enumerate(placed.boxes.boxes)
        if columns[box.column].group == group
    ]


def box_of(placement: Placement, node: str, title: str) -> Box:
    """Return the only box with a title on a node."""
    (box,) = (
        box
        for box in placement.boxes
        if box.title == title
        and node in placement.groups[placement.columns[box.column].group].nodes
    )
    return box


def check(placed: PlacedGraph) -> None:
    """Check that the picture of a graph agrees with its plan."""
    placement, plan = draw(placed), placed.build.plan
    graph, drawn = placed.graph, placed.drawn
    _check_shape(placement, placed)
    for group, nodes in enumerate(placed.columns.groups):
        numbers = boxes_of_group(placed, group)
        found = Counter(op for n in numbers for op in placed.boxes.boxes[n].ops)
        for node in nodes:
            own = graph.ops_on(node)
            if not numbers:  # an idle server
                assert all(op.structure.directive for op in own)
            else:
                assert found == Counter(own), node
        for number in numbers:
            box = drawn.boxes[placed.of[number]]
            assert set(placed.boxes.boxes[number].ops) <= set(box.ops)
            assert set(nodes) <= set(placed.nodes[box.column])
    messages = [arrow for arrow in placement.arrows if not arrow.between_devices]
    assert sum(arrow.nbytes for arrow in messages) == sum(
        e.nbytes for e in placed.edges
    )
    shown = {number for arrow in messages for number in arrow.edges}
    assert {edge.id for edge in placed.edges if edge.nbytes} <= shown
    by_key = {edge.id for edge in placed.edges if edge.is_by_key}
    assert all(a.estimated == (not by_key.isdisjoint(a.edges)) for a in messages)
    sent = Counter[int]()
    for arrow in messages:
        sent[arrow.source] += arrow.nbytes
    assert [box.nbytes for box in placement.boxes] == [
        sent[box.id] for box in placement.boxes
    ]
    if placed.phase == "a training step":
        assert sum(box.total_flops for box in placement.boxes) == sum(
            node.flops + node.replicated_flops + node.exchange_flops
            for node in plan.nodes
        )
    items = item_bytes(plan)
    assert sum(box.total_stored for box in placement.boxes) == sum(
        block_bytes(block, items)
        for node in plan.nodes
        for table in node.tables
        for block in table.blocks
    )
    _check_details(placement, placed)


def _check_shape(placement: Placement, placed: PlacedGraph) -> None:
    boxes = placement.boxes
    assert len(placement.columns) <= MAX_COLUMNS
    assert [box.id for box in boxes] == list(range(len(boxes)))
    places = [(box.column, box.row) for box in boxes]
    assert len(set(places)) == len(places)
    for arrow in placement.arrows:
        assert boxes[arrow.source].row < boxes[arrow.target].row
    for box, before in zip(boxes, placed.drawn.before, strict=True):
        assert all(boxes[source].row < box.row for source in before)
    kinds = [(a.source, a.target, a.between_devices) for a in placement.arrows]
    assert len(set(kinds)) == len(kinds)
    assert all(box.lines and box.title and box.why for box in boxes)


def _check_details(placement: Placement, placed: PlacedGraph) -> None:
    details, plan = list_details(placed), placed.build.plan
    lines = {line.strip() for line in placed.build.read_text("graph.txt").split("\n")}
    assert set(details.ops) <= lines
    end = 0
    for box, layers in zip(placement.boxes, details.boxes, strict=True):
        for layer in layers:
            assert layer.ops[0] == end < layer.ops[1]
            end = layer.ops[1]
        assert sum(b - a for a, b in (each.ops for each in layers)) == box.ops
        assert abs(sum(each.flops for each in layers) - box.flops) <= len(layers)
    assert end == len(details.ops)
    holders = {p.name: {node for node, _, _ in p.holders} for p in plan.parameters}
    holders |= {table.name: set(table.holders) for table in plan.sparse_tables}
    for name, nodes in holders.items():
        boxes = [placement.boxes[number] for number in details.parameters[name]]
        assert all(box.purpose == "store" for box in boxes)
        found = [placement.groups[placement.columns[b.column].group] for b in boxes]
        assert nodes <= {node for group in found for node in group.nodes}


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_agrees_with_the_plan(name: str) -> None:
    check(placed_spec(name))


@pytest.mark.parametrize("name", ["digits.yaml", "wide_deep.yaml", "cnn_gpus.yaml"])
def test_a_single_process_has_a_picture(name: str) -> None:
    placed = place(load_build(SPECS / name, single_process=True))
    check(placed)
    assert not any(not arrow.between_devices for arrow in draw(placed).arrows)


def test_a_prediction_has_a_picture(tmp_path: Path) -> None:
    placer.compile(SPECS / "digits.yaml", tmp_path / "build")
    build = compile_prediction(tmp_path / "build")
    files = build.files_in(tmp_path)
    placed = place(LoadedBuild(tmp_path, build.plan, files.__getitem__))
    check(placed)
    placement = draw(placed)
    assert placement.phase == "a prediction batch"
    assert [box.title for box in placement.boxes] == [
        "stores parameters",
        "reads rows",
        "forward",
    ]
    assert placement.boxes[2].flops > 0


def test_boxes_of_two_workers_and_two_servers() -> None:
    placement = draw(placed_spec("digits.yaml"))
    assert [group.title for group in placement.groups] == ["worker:0-1", "ps:0", "ps:1"]
    assert [(column.device, column.count) for column in placement.columns] == [
        ("cpu", 1)
    ] * 3
    assert sorted((box.column, box.row, box.title) for box in placement.boxes) == [
        (0, 0, "reads rows"),
        (0, 1, "forward and backward"),
        (1, 0, "stores parameters"),
        (1, 2, "computes norms"),
        (1, 3, "updates parameters"),
        (2, 0, "stores parameters"),
        (2, 2, "computes norms"),
        (2, 4, "updates parameters"),
    ]
    computing = box_of(placement, "worker:0", "forward and backward")
    assert [(line.name, line.note) for line in computing.lines] == [
        ("h1", "fc"),
        ("logits", "fc"),
        ("loss", "softmax_cross_entropy"),
        ("accuracy", "accuracy"),
    ]
    assert computing.functions == ("forward_backward",)
    stored = box_of(placement, "ps:1", "stores parameters")
    assert [line.name for line in stored.lines] == ["h1.b", "logits.w", "logits.b"]
    assert stored.stored == stored.total_stored == 4 * (128 + 1280 + 10)
    sent = [a.nbytes for a in placement.arrows if a.target == computing.id]
    assert sent == [65536, 11344]


def test_pushed_rows_go_to_updates_and_requested_keys_to_lookups() -> None:
    placement = draw(placed_spec("wide_deep_sparse.yaml"))
    ends = {
        (placement.boxes[a.source].title, placement.boxes[a.target].title)
        for a in placement.arrows
        if a.estimated
    }
    assert ends == {
        ("collects keys", "looks up rows"),
        ("looks up rows", "forward and backward"),
        ("forward and backward", "updates parameters"),
    }
    # Both tables share the keys, and the servers have equal partitions: each gets half of them.
    keys = [a for a in placement.arrows if a.edges == (1,)]
    assert [arrow.nbytes for arrow in keys] == [98304 // 2] * 2


def test_workers_of_different_heter_nodes_share_a_column() -> None:
    placement = draw(placed_spec("digits_heter.yaml"))
    titles = [group.title for group in placement.groups]
    assert titles == ["worker:0-3", "heter:0-1.0-1", "ps:0"]
    devices = [(c.group, c.device, c.count) for c in placement.columns]
    assert devices == [(0, "cpu", 1), (1, "cpu", 1), (1, "gpu:0", 1), (2, "cpu", 1)]


def test_devices_that_compute_together_share_a_column() -> None:
    placement = draw(placed_spec("cnn_gpus.yaml"))
    assert [(c.device, c.count) for c in placement.columns] == [
        ("cpu", 1),
        ("gpu:0-7", 8),
    ]
    reads = box_of(placement, "worker:0", "reads rows")
    (copy,) = (a for a in placement.arrows if a.source == reads.id)
    assert copy.between_devices
    # 64 rows of 64 pixels, 2 positions and a label, with 4 bytes each.
    assert copy.nbytes == 64 * (64 + 2 + 1) * 4
    assert all(box.nbytes == 0 for box in placement.boxes)


def test_an_all_reduce_is_an_arrow_within_a_column() -> None:
    placement = draw(placed_spec("digits_without_server.yaml"))
    (arrow,) = placement.arrows
    ends = placement.boxes[arrow.source], placement.boxes[arrow.target]
    assert [box.title for box in ends] == ["forward and backward", "updates parameters"]
    assert ends[0].column == ends[1].column
    assert placement.groups[0].title == "worker:0-1"


def test_a_node_that_sums_for_others_has_a_box() -> None:
    placement = draw(placed_spec("digits_all_reduce.yaml"))
    box = box_of(placement, "worker:0", "sums over nodes")
    assert [(line.name, line.note) for line in box.lines] == [
        ("clip.square", "sum of 2 nodes")
    ]


RING = """
name: ring
nodes: {worker: {count: 4}}
inputs: {x: "float32[batch, 64]", y: "int32[batch]"}
data: {train: {source: "npz:x.npz", batch: 8}}
graph:
  - {name: h, op: fc, in: x, size: 1000, activation: relu, place: "/node:worker"}
  - {name: z, op: fc, in: h, size: 5, place: "/node:worker:0-1"}
  - {name: loss, op: softmax_cross_entropy, in: [z, y], place: "/node:worker:0-1"}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1, place: "/node:worker", all_reduce: WAY}
"""


@pytest.mark.parametrize("way", ["ring", "direct"])
def test_ranges_between_different_workers(tmp_path: Path, way: str) -> None:
    placed = placed_text(RING.replace("WAY", way), tmp_path)
    check(placed)
    assert any(edge.is_flat and edge.ring == (way == "ring") for edge in placed.edges)
    assert len(placed.groups) > 1
    for edge in placed.edges:
        parts = weigh_edge(
            placed.graph,
            placed.build.plan,
            edge,
            placed.columns.group_of,
            placed.node_classes,
        )
        assert sum(parts.values()) == edge.nbytes


def test_many_servers_share_a_column(tmp_path: Path) -> None:
    text = """
name: many
nodes: {worker: {count: 2}, ps: {count: 40}}
inputs: {x: "float32[batch, 8]", y: "int32[batch]"}
data: {train: {source: "npz:x.npz", batch: 8}}
graph:
  - {name: h, op: fc, in: x, size: 500, activation: relu, place: "/node:worker"}
  - {name: z, op: fc, in: h, size: 5, place: "/node:worker"}
  - {name: loss, op: softmax_cross_entropy, in: [z, y], place: "/node:worker"}
train:
  minimize: loss
  clip: {global_norm: 1.0}
  optimizer: {op: adam, learning_rate: 0.1, place: "/node:ps"}
  slicing: {min_block: 1}
"""
    placed = placed_text(text, tmp_path)
    check(placed)
    placement = draw(placed)
    assert len(placement.columns) == MAX_COLUMNS
    assert placement.groups[0].title == "worker:0-1"
    assert placement.groups[-1].title == "ps:14-39"
    assert placement.columns[-1].device == "26 devices"
    assert placement.left_out == "26 devices of ps:14-39 share a column"


def test_many_devices_share_a_column(tmp_path: Path) -> None:
    chain = runpy.run_path(find_file("bench/compile_time.py"))["spec"]
    placed = placed_text(chain(100, devices=24), tmp_path)
    check(placed)
    placement = draw(placed)
    assert len(placement.columns) == MAX_COLUMNS
    assert placement.left_out == "11 devices of worker:1-2 share a column"


def test_boxes_above_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "MAX_BOXES", 5)
    placed = placed_spec("digits.yaml")
    placement, details = draw(placed), list_details(placed)
    assert len(placement.boxes) == len(details.boxes) == 5
    assert max(box.row for box in placement.boxes) == 2
    assert [column.left_out for column in placement.columns] == [0, 1, 2]
    assert placement.left_out == "3 boxes are not drawn, from row 2 on"
    assert {number for a in placement.arrows for number in (a.source, a.target)} <= {
        *range(5)
    }


def test_a_box_of_many_layers_names_ranges(tmp_path: Path) -> None:
    chain = runpy.run_path(find_file("bench/compile_time.py"))["spec"]
    placed = placed_text(chain(101), tmp_path)
    check(placed)
    computing = box_of(draw(placed), "worker:0", "forward and backward")
    first, *_, last = computing.lines
    assert (len(computing.lines), computing.more) == (6, 0)
    assert (first.name, last.name) == ("fc0 … out3", "fc21 … loss")
    assert first.note == "36 ops"


def test_reasons_are_those_that_explain_prints() -> None:
    build = build_of("digits.yaml")
    info = BuildInfo(build.plan, build.graphs, build.op_positions)
    placement = placement_of(build)
    texts = {
        ("ps:0", "stores parameters"): "h1.w",
        ("worker:0", "reads rows"): "image",
        ("worker:0", "forward and backward"): "h1",
    }
    for (node, title), name in texts.items():
        why = box_of(placement, node, title).why
        assert any(line.endswith(f": {why}") for line in explain(info, name))


def test_boxes_that_follow_an_optimizer_or_a_table_say_so() -> None:
    digits = placement_of(build_of("digits.yaml"))
    assert box_of(digits, "ps:0", "computes norms").why == (
        "with the optimizer (adam) at /node:ps/cpu"
    )
    sparse = placement_of(build_of("wide_deep_sparse.yaml"))
    assert box_of(sparse, "ps:0", "looks up rows").why == (
        "with the tables wide.table and vectors.table at /node:ps/cpu"
    )


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("digits.yaml", ""),
        (
            "digits_async.yaml",
            "Asynchronous: workers do not wait for each other. A worker is at most 8"
            " steps ahead of the updates.",
        ),
        (
            "digits_backup.yaml",
            "Backup workers: a step uses the gradients of the fastest 3 workers.",
        ),
        (
            "digits_diloco.yaml",
            "Workers train their own copies and wait for each other every 10 steps.",
        ),
    ],
)
def test_the_picture_says_how_workers_wait(name: str, mode: str) -> None:
    assert placement_of(build_of(name)).mode == mode


def test_layers_have_their_line_in_the_spec() -> None:
    placed = placed_spec("digits.yaml")
    details = list_details(placed)
    computing = box_of(draw(placed), "worker:0", "forward and backward")
    (layer,) = (each for each in details.boxes[computing.id] if each.name == "h1")
    assert layer.kind == "fc"
    assert layer.output == "[batch, 128]"
    spec = (SPECS / "digits.yaml").read_text(encoding="utf-8").splitlines()
    file, _, line = layer.line.partition(":")
    assert file == "digits.yaml"
    assert "name: h1" in spec[int(line) - 1]
    ops = details.ops[slice(*layer.ops)]
    assert ["fc(" in ops[0], "fc.grad(" in ops[1], len(ops)] == [True, True, 2]


def test_boxes_have_the_mean_time_of_their_nodes() -> None:
    measured = {
        "worker:0": {"forward_backward": 0.25, "read": 0.5, "wait for ps:0": 7.0},
        "worker:1": {"forward_backward": 0.75, "send": 1.0},
        "ps:0": {"update dense": 0.125, "parameters": 0.0625},
    }
    time = StepTime(1, 1.0, 1, (), {}, (), "", (), measured)
    placement = placement_of(build_of("digits.yaml"), step_time=time)
    computing = box_of(placement, "worker:1", "forward and backward")
    assert (computing.seconds, computing.functions) == (0.5, ("forward_backward",))
    assert box_of(placement, "worker:0", "reads rows").seconds == 0.5
    update = box_of(placement, "ps:0", "updates parameters")
    assert (update.seconds, update.functions) == (0.125, ("update dense",))
    assert box_of(placement, "ps:0", "stores parameters").seconds == 0.0625
    assert box_of(placement, "ps:1", "updates parameters").seconds is None


def test_shares_add_up_to_the_total() -> None:
    assert share(10, {(0, 0): 1, (0, 1): 1, (0, 2): 1}) == {
        (0, 0): 3,
        (0, 1): 3,
        (0, 2): 4,
    }
    assert share(7, {(0, 0): 0, (0, 1): 0}) == {(0, 0): 3, (0, 1): 4}
    assert share(0, {(0, 0): 0}) == {(0, 0): 0}


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_edges_add_up_before_they_are_scaled(name: str) -> None:
    placed = placed_spec(name)
    for edge in placed.edges:
        if edge.is_by_key or edge.exchange == "push_delta":
            continue  # upper bounds, or averages of several steps
        parts = weigh_edge(
            placed.graph,
            placed.build.plan,
            edge,
            placed.columns.group_of,
            placed.node_classes,
        )
        times = 1
        if placed.graph.is_repeated(placed.graph.receives[edge.id]):
            times = placed.graph.microbatches
        assert times * sum(parts.values()) // edge.every == edge.nbytes


def test_measured_rows_replace_their_bounds() -> None:
    sent = [
        SentBytes(1, f"worker:{i}", f"ps:{k}", 10 * i + k, 0.1 * i)
        for i in (0, 1)
        for k in (0, 1)
    ]
    dense = SentBytes(2, "ps:0", "worker:0", 1)  # the plan has the exact size
    time = StepTime(1, 1.0, 1, (), {}, (), "", (), {}, (*sent, dense))
    placement = placement_of(build_of("wide_deep_sparse.yaml"), step_time=time)
    keys = [a for a in placement.arrows if a.edges == (1,)]
    assert [(a.nbytes, a.measured, a.estimated) for a in keys] == [
        (0 + 10, True, False),
        (1 + 11, True, False),
    ]
    assert [a.seconds for a in keys] == [0.1, 0.1]  # of the slowest message
    assert placement.boxes[keys[0].source].nbytes == 22
    (parameters,) = (a for a in placement.arrows if a.edges == (2,))
    assert (parameters.nbytes, parameters.measured) == (202752, False)
    assert parameters.seconds is None
    rows = [a for a in placement.arrows if a.edges == (4,)]
    assert all(a.estimated and not a.measured for a in rows)


@MAY_PAIR_ROWS
@given(models())
@settings(
    deadline=None,
    max_examples=6,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_picture_of_a_drawn_model_agrees_with_its_plan(drawn: DrawnModel) -> None:
    with TemporaryDirectory() as name:
        rows = {which: drawn.rows(which) for which in ("train", "eval")}
        try:
            build = load_build(write_spec(drawn.spec, rows, Path(name)))
        except GraphError:  # a model that trains nothing
            return
        check(place(build))


@pytest.mark.parametrize("name", NAMES)
def test_layers_of_boxes_have_the_kinds_of_the_table_of_layers(name: str) -> None:
    placed = placed_spec(name)
    layers = find_layers(placed.build.plan, placed.graph)
    table = {layer.name: layer.kind for layer in layers if layer.kind != INPUT}
    kinds = placed.layers.kinds
    both = kinds.keys() & table.keys()
    assert both
    assert {each: kinds[each] for each in both} == {each: table[each] for each in both}
