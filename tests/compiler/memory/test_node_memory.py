"""The memory that a step needs, and the memory that the spec gives to a device."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sparse_specs import write_sparse_spec

from placer import SpecError, compile
from placer.runtime.asynchronous.worker_sums import WorkerSums
from placer.runtime.exchange.range_exchange import RangeEdge
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.system.resources import find_file

DIGITS = find_file("specs/digits.yaml").read_text(encoding="utf-8")


def with_memory(folder: Path, size: str) -> Path:
    file = folder / "digits.yaml"
    devices = f"{{cpu: {{count: 1, memory: {size}}}}}"
    file.write_text(DIGITS.replace("{cpu: 1}", devices), encoding="utf-8")
    return file


def test_a_step_that_does_not_fit_is_an_error_at_the_memory_of_the_spec(tmp_path):
    with pytest.raises(SpecError) as caught:
        compile(with_memory(tmp_path, "100KiB"), tmp_path / "build")
    assert caught.value.message == (
        "a step on worker:0 needs 169,824 bytes of cpu:0, which has only 102,400"
    )
    assert caught.value.span is not None
    assert caught.value.span.text[caught.value.span.column - 1 :].startswith("100KiB")
    assert not (tmp_path / "build").exists()


def test_the_threads_of_a_process_share_the_memory_of_its_devices(tmp_path):
    """Each of two threads needs 123,360 bytes, a worker without threads 169,824."""
    file = with_memory(tmp_path, "200KiB")
    compile(file, tmp_path / "one")
    with pytest.raises(SpecError) as caught:
        compile(file, tmp_path / "two", overrides=["train.threads=2"])
    assert caught.value.message == (
        "a step on worker:0 in 2 threads needs 246,720 bytes of cpu:0, which has only 204,800"
    )
    assert caught.value.hint == "use a smaller batch, or more nodes, or fewer threads"


def test_a_step_that_fits_is_compiled(tmp_path):
    plan = compile(with_memory(tmp_path, "1MiB"), tmp_path / "build")
    assert plan.nodes[0].activation_bytes == 169_824
    assert plan.nodes[0].table_bytes == 0


def test_memory_of_the_nodes_does_not_limit_a_single_process(tmp_path):
    file = with_memory(tmp_path, "100KiB")
    compile(file, tmp_path / "build", single_process=True)


def test_the_peak_counts_values_until_their_last_use(tmp_path):
    """On a worker: the received parameters, its rows and the saved forward values."""
    plan = compile(with_memory(tmp_path, "1GiB"), tmp_path / "build")
    parameters = (64 * 128 + 128 + 128 * 10 + 10) * 4
    rows = 64 * 64 * 4 + 64 * 4
    saved = (
        64 * 128 * 4 + 64 * 128 + 2 * 64 * 10 * 4
    )  # h1, its mask, logits, its residual
    for node in plan.nodes[:2]:
        assert (
            parameters + rows + saved
            <= node.activation_bytes
            <= 2 * parameters + rows + 2 * saved
        )


def test_a_message_to_the_node_itself_is_freed_in_its_task(tmp_path):
    """worker:1 gathers rows of itself and worker:2, and has only repeated tasks."""
    file = tmp_path / "stages.yaml"
    file.write_text(
        """\
nodes: {worker: {count: 3}}
inputs: {x: "float32[batch, 64]", y: "float32[batch, 64]"}
data: {train: {source: "npz:rows.npz", batch: 32}}
graph:
  - {name: h, op: fc, in: x, size: 64, place: "/node:worker:0"}
  - {name: t, op: tanh, in: h, place: "/node:worker:1-2"}
  - {name: s, op: scale, in: t, factor: 2.0, place: "/node:worker:1"}
  - {name: loss, op: mean_squared_error, in: [s, y], place: "/node:worker:0"}
train:
  minimize: loss
  microbatches: 4
  optimizer: {op: sgd, learning_rate: 0.1}
"""
    )
    nodes = compile(file, tmp_path / "build").nodes
    rows = 32 // 4 * 64 * 4  # of a microbatch
    assert 2 * rows < nodes[2].activation_bytes < nodes[1].activation_bytes < 10 * rows


def test_a_sum_of_half_floats_over_microbatches_is_stored_in_float32(tmp_path):
    file = tmp_path / "halves.yaml"
    text = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 64]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: h, op: cast, in: x, dtype: DTYPE}
  - {name: y, op: fc, in: h, size: 1024, bias: false}
  - {name: loss, op: reduce_mean, in: y}
train:
  minimize: loss
  microbatches: 2
  optimizer: {op: sgd, learning_rate: 0.1}
"""
    needed = {}
    for dtype in ("bfloat16", "float32"):
        file.write_text(text.replace("DTYPE", dtype))
        needed[dtype] = compile(file, tmp_path / dtype).nodes[0].activation_bytes
    gradient = 64 * 1024
    # A gradient of a microbatch and the sum: 2 and 4 bytes an element, or 4 each.
    assert needed["float32"] - needed["bfloat16"] == pytest.approx(
        2 * gradient, rel=0.1
    )


def test_the_memory_of_a_server_that_sums_has_a_growing_and_a_sent_sum_of_each_worker(
    tmp_path,
):
    """As many as `WorkerSums` has when all workers ask at different points."""
    spec = find_file("specs/digits_sum_server.yaml")
    plan = compile(spec, tmp_path / "build", nodes={"worker": 4})
    (push,) = (edge for edge in plan.step_edges if edge.exchange == "push_sum")
    for server in push.targets:
        sums, owned = WorkerSums(push, server), RangeEdge(push).of_owner[server]
        pushed = [np.zeros(high - low, np.float32) for _, low, high in owned]
        sent = []
        for step, worker in enumerate((*push.sources, ""), 1):
            pieces = [(i, 0, array) for i, array in enumerate(pushed, 1)]
            sums.add(WorkerMessage(push.id, "", step, step, 1, parts=(iter(pieces),)))
            if worker:
                sent += sums.take(worker).arrays
        growing = [array for group in sums._groups for array in group.arrays]
        held = sum({id(array): array.nbytes for array in (*growing, *sent)}.values())
        planned = plan.node(server)
        assert held == planned.table_bytes == 8 * sum(each.nbytes for each in pushed)
        assert planned.device_bytes["cpu:0"] == planned.activation_bytes + held


def with_rows(folder: Path, size: str, **settings: Any) -> Path:
    return write_sparse_spec(folder, cpu={"count": 1, "memory": size}, **settings)


def test_rows_that_are_expected_and_do_not_fit_are_an_error_at_the_memory(tmp_path):
    item = {"rows": 10_000_000}  # at least 103 bytes each, on two servers
    spec = with_rows(tmp_path, "256MiB", item=item)
    with pytest.raises(SpecError) as caught:
        compile(spec, tmp_path / "build")
    found = re.fullmatch(
        r"ps:0 needs [0-9,]+ bytes of cpu:0 for a step, at least ([0-9,]+) for its part"
        r" of 10,000,000 expected rows of table 'i.table' and at least 65,536 for the"
        r" index of table 'u.table', which exceeds its 268,435,456",
        caught.value.message,
    )
    assert found is not None
    assert 510e6 < int(found[1].replace(",", "")) < 530e6
    assert caught.value.span is not None
    assert caught.value.span.text[caught.value.span.column - 1 :].startswith('"256MiB')
    assert "a 'capacity'" in str(caught.value.hint)
    bounded = item | {"capacity": 1_000_000}
    for name, table in {"bounded": bounded, "open": {}}.items():
        folder = tmp_path / name
        folder.mkdir()
        compile(with_rows(folder, "256MiB", item=table), folder / "build")
    compile(spec, tmp_path / "more", nodes={"ps": 8})


def test_what_a_step_leaves_of_the_memory_is_for_rows(tmp_path):
    plan = compile(with_rows(tmp_path, "1GiB"), tmp_path / "build")
    server = plan.node("ps:0")
    assert server.memory == 1 << 30
    assert plan.memory_for_rows("ps:0") == (1 << 30) - server.device_bytes["cpu:0"]
    assert plan.memory_for_rows("worker:0") is None


def test_the_threads_of_a_process_leave_its_first_one_memory_for_rows(tmp_path):
    spec = write_sparse_spec(tmp_path, servers=0)
    devices = {"cpu": {"count": 1, "memory": "1GiB"}}
    plan = compile(
        spec,
        tmp_path / "build",
        overrides={"nodes.worker.devices": devices, "train.threads": 2},
    )
    assert plan.sparse_tables[0].holders == ("worker:0.0", "worker:1.0")
    needed = sum(each.device_bytes["cpu:0"] for each in plan.process("worker:0"))
    assert plan.memory_for_rows("worker:0.0") == (1 << 30) - needed
