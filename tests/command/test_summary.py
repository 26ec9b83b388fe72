"""The summary of `placer show`: layers, totals and the memory of nodes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from placer.compiler.build_or_spec import LoadedBuild, load_build
from placer.plan.settings.training.optimizers import RULES
from placer.report import summary
from placer.report.explain import BuildInfo, explain
from placer.report.layers import Layer, find_layers
from placer.report.metric_bytes import metric_bytes
from placer.report.numbers import format_size
from placer.report.summary import process_memory, summarize
from placer.system.resources import find_file

WORKER = "/node:worker/cpu"


def load(spec: str, **nodes: int) -> LoadedBuild:
    return load_build(Path(find_file(f"specs/{spec}.yaml")), nodes=nodes or None)


def layers(build: LoadedBuild) -> dict[str, Layer]:
    return {layer.name: layer for layer in find_layers(build.plan, build.graphs[0])}


def text(build: LoadedBuild, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    for view in summarize(build.plan, build.graphs[0]):
        console.print(view)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_summary_of_digits() -> None:
    assert (
        "\n".join(text(load("digits")))
        == """\
digits: worker:0-1, ps:0-1

layer     kind                   output        params  stored     sends  FLOPs
image     input                  [batch, 64]
label     input                  int32[batch]
h1        fc                     [batch, 128]   8,320  ps:0-1  133.1 kB    81%
logits    fc                     [batch, 10]    1,290  ps:1     20.6 kB    19%
loss      softmax_cross_entropy  scalar             0                      <1%
accuracy  accuracy               metric             0                      <1%

place       all layers at /node:worker/cpu
parameters  9,610 (38.4 kB): 9,610 trainable
data        sklearn:digits, read by worker:0-1
a step      128 rows
            5.4 MFLOPs, including 9.6 kFLOPs for sums over nodes
            153.8 kB sent on 6 edges

each process  parameters    slots  activations         FLOPs  peak of devices
worker:0-1       0 bytes  0 bytes     169.8 kB    2.6 MFLOPs  cpu:0 169.8 kB
ps:0             32.8 kB  65.5 kB      65.5 kB  139.3 kFLOPs  cpu:0 163.8 kB
ps:1              5.7 kB  11.3 kB      10.3 kB   24.1 kFLOPs  cpu:0 27.3 kB"""
    )


@pytest.mark.parametrize("microbatches", [1, 2])
def test_histograms_of_metrics_count_as_bytes_of_a_step(microbatches: int) -> None:
    file, parts = find_file("specs/wide_deep_sparse.yaml"), microbatches
    build = load_build(Path(file), overrides=[f"train.microbatches={parts}"])
    # Of two workers, one sends 2 x 4,097 counts of int32, and the loss as float64.
    assert metric_bytes(build.plan, build.graphs[0]) == 2 * 4097 * 4 + 8
    (line,) = (line for line in text(build) if "of metrics" in line)
    assert line.strip() == "32.8 kB of metrics sent to worker:0"


def test_a_place_that_differs_has_a_column() -> None:
    lines = text(load("wide_deep"), 100)
    assert lines[2].split() == [
        "layer",
        "kind",
        "output",
        "params",
        "place",
        "sends",
        "FLOPs",
    ]
    (deep1,) = (line for line in lines if line.startswith("deep1 "))
    cells = "deep1 fc [batch, 128] 2,688 heter/gpu 21.5 kB 26%"
    assert deep1.split() == cells.split()
    (stored,) = (line for line in lines if line.startswith("parameters "))
    assert stored.endswith("trainable; stored on ps:0")


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ("transformer_pipeline", "stored on the nodes of their layers"),
        ("digits_without_server", "stored on worker:0-1"),
    ],
)
def test_the_nodes_that_store_the_parameters_are_named_once(
    spec: str, where: str
) -> None:
    (line,) = (line for line in text(load(spec), 120) if line.startswith("parameters "))
    assert line.endswith(f"trainable; {where}")


def test_a_summary_counts_the_layers_that_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "_MAX_LAYERS", 4)
    lines = text(load("digits"))
    names = [line.split("  ")[0] for line in lines[3:8]]
    assert names == ["image", "label", "… 2 more layers …", "loss", "accuracy"]
    assert lines[5].split("  ")[1:] == []


@pytest.mark.parametrize("spec", ["digits", "digits_geo", "wide_deep", "deepfm"])
def test_layers_send_all_bytes_of_a_step_but_the_sums_for_norms(spec: str) -> None:
    build = load(spec)
    sums = {"clip.square.1", "clip.scale"}
    edges = [
        edge
        for edge in build.plan.step_edges
        if not sums & {value.operand for value in edge.values}
    ]
    sent = sum(layer.sent for layer in layers(build).values())
    total = sum(edge.nbytes for edge in edges)
    # Each value of an edge loses less than a byte to rounding.
    assert 0 <= total - sent < sum(len(edge.values) for edge in edges)


def test_the_flops_of_layers_are_those_of_the_model() -> None:
    build = load("cnn_gpus")  # one node computes each layer once
    flops = sum(layer.flops for layer in layers(build).values())
    updates = RULES["adam"].flops * 29_162  # the trained elements
    assert flops + updates == build.plan.nodes[0].flops


def test_a_window_is_told_with_its_memory(tmp_path: Path) -> None:
    spec = Path(find_file("specs/digits.yaml")).read_text()
    source = 'source: "sklearn:digits", split: train'
    assert source in spec
    spec = spec.replace(source, 'source: "parquet:rows.parquet"')
    spec = spec.replace("shuffle: true", "shuffle: {window: 1000}")
    (tmp_path / "model.yaml").write_text(spec)
    lines = text(load_build(tmp_path / "model.yaml"), 120)
    (line,) = (line for line in lines if line.startswith("data "))
    assert "parquet:rows.parquet (a window of 1,000 rows, 260.0 kB on all" in line


def test_a_composite_is_one_layer_with_its_state() -> None:
    build = load("cnn_gpus")
    of = layers(build)
    gpu = "/node:worker/gpu"
    shape = "[batch, 6, 6, 32]"
    assert of["norm1"] == Layer(
        "norm1",
        "batch_norm",
        shape,
        128,
        False,
        gpu,
        nodes="worker:0",
        stored="worker:0",
        flops=1_769_728,
    )
    assert of["thinned"].kind == "dropout"
    assert "batch.position" not in of
    (totals,) = (line for line in text(build, 120) if line.startswith("parameters "))
    assert totals == (
        "parameters  29,354 (117.4 kB): 29,162 trainable, 192 of state, such as running"
        " means; stored on worker:0"
    )
    (memory,) = process_memory(build.plan).values()
    assert memory.devices == "cpu:0 538.9 kB, gpu:0-7 454.1 kB"


def test_a_parameter_counts_in_the_first_layer_that_uses_it() -> None:
    of = layers(load("word2vec"))
    assert list(of) == ["word", "beside", "vector", "loss", "logits", "surprise"]
    assert (of["vector"].parameters, of["loss"].parameters) == (32_000, 33_000)
    assert (of["logits"].parameters, of["logits"].shares) == (0, True)
    assert of["loss"].kind == "nce"


@pytest.mark.parametrize(
    "spec",
    ["cnn_gpus", "lamb", "lstm", "transformer_pipeline", "wide_deep", "word2vec"],
)
def test_layers_have_all_parameters_whatever_their_placement(spec: str) -> None:
    build = load(spec)
    info = BuildInfo(build.plan, build.graphs)
    counted = 0
    for layer in layers(build).values():
        counted += layer.parameters
        assert list(explain(info, layer.name))
    sizes = [line for line in text(build) if line.startswith("parameters ")]
    assert sizes[0].split()[1] == f"{counted:,}"
    memory = process_memory(build.plan)
    tables = sum(node.table_bytes for node in build.plan.nodes)
    alone = {
        n: m.values + m.slots + m.copies for n, m in memory.items() if "-" not in n
    }
    assert sum(alone.values()) == tables
    alone_build = load_build(build.path, single_process=True)
    kinds = [(layer.name, layer.kind, layer.output) for layer in layers(build).values()]
    of_one = [(a.name, a.kind, a.output) for a in layers(alone_build).values()]
    assert sorted(kinds) == sorted(of_one)


def test_equal_nodes_share_a_line() -> None:
    lines = text(load("digits", worker=128, ps=9))
    starts = [line.split()[0] for line in lines[-5:]]
    assert starts == ["ps:0", "ps:1", "ps:2", "ps:3", "ps:4-8"]
    assert lines[-6].startswith("worker:0-127 ")


def test_the_threads_of_a_process_are_counted_together() -> None:
    lines = text(load("digits_threads"))
    assert lines[0] == "digits_threads: worker:0-1.0-1, ps:0"
    assert [line.split("  ")[0] for line in lines[-2:]] == [
        "worker:0-1.0-1",
        "ps:0",
    ]
    threads = load("digits_threads").plan.nodes[:2]
    bytes_of_device = sum(node.device_bytes["cpu:0"] for node in threads)
    assert lines[-2].endswith(f"cpu:0 {format_size(bytes_of_device)}")
