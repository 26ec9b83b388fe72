"""What processes need of their machines."""

from __future__ import annotations

from placer.compiler.driver import compile_in_memory
from placer.launcher.engines.resources import needs_of

MIB = 1 << 20


def test_the_memory_is_that_of_the_plan_and_half_a_gigabyte(tmp_path):
    plan = compile_in_memory("specs/digits.yaml", nodes={"worker": 2, "ps": 1}).plan
    needs = needs_of(plan, tmp_path)
    assert [*needs] == ["worker:0", "worker:1", "ps:0"]
    for name, each in needs.items():
        node = plan.node(name)
        least = (512 << 20) + node.table_bytes + node.activation_bytes
        assert least <= each.memory < least + 64 * MIB
        assert each.gpus == 0


def test_gpus_are_those_of_the_devices_unless_they_are_emulated(tmp_path):
    plan = compile_in_memory("specs/wide_deep.yaml").plan
    needs = needs_of(plan, tmp_path)
    counts = {name: plan.node(name).devices.get("gpu", 0) for name in needs}
    assert {name: each.gpus for name, each in needs.items()} == counts
    assert any(counts.values())
    assert not any(
        each.gpus for each in needs_of(plan, tmp_path, emulate=True).values()
    )


def test_sparse_tables_count_with_the_rows_that_the_spec_expects(tmp_path):
    overrides = {"graph.vectors.rows": 50_000_000}
    small = compile_in_memory("specs/deepfm.yaml").plan
    large = compile_in_memory("specs/deepfm.yaml", overrides=overrides).plan
    before, after = (needs_of(plan, tmp_path)["ps:0"].memory for plan in (small, large))
    assert after - before > 50_000_000 * 4 * 4


def test_rows_in_memory_count_for_the_nodes_that_read_them(tmp_path):
    data = tmp_path / "of [2026]"
    data.mkdir()
    with (data / "rows.csv").open("wb") as file:
        file.truncate(300 * MIB)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        """\
name: small
nodes: {worker: {count: 1}, ps: {count: 1}}
inputs: {x: "float32[batch, 2]", y: "float32[batch]"}
data:
  train: {source: "csv:rows.csv", batch: 8, columns: {x: [a, b], y: c}}
graph:
  - {name: out, op: fc, in: x, size: 1, place: /node:worker/cpu}
  - {name: p, op: reshape, in: out, shape: [batch]}
  - {name: loss, op: mean_squared_error, in: [p, y]}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:ps/cpu}
"""
    )
    plan = compile_in_memory(spec).plan
    needs = needs_of(plan, data)
    assert needs["worker:0"].memory >= (512 + 600) * MIB
    assert needs["ps:0"].memory < 640 * MIB

    # A stream has two passes of its largest files in memory.
    for number, nbytes in enumerate((50, 100, 10), start=1):
        with (data / f"rows-{number}.csv").open("wb") as file:
            file.truncate(nbytes * MIB)
    keys = {"data.train.source": "csv:rows-*.csv", "data.train.stream": {"files": 2}}
    plan = compile_in_memory(spec, overrides=keys).plan
    memory = needs_of(plan, data)["worker:0"].memory
    assert (512 + 600) * MIB <= memory < (512 + 700) * MIB
