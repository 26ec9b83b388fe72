"""The facts of a plan for a report page: memory, tables and the schedule."""

from __future__ import annotations

import pytest

from placer.compiler.build_or_spec import LoadedBuild, load_build
from placer.report.page.memory import memory_rows
from placer.report.page.schedule import declared_schedule, measured_schedule
from placer.report.page.tables import (
    balance_of,
    memory_of_rows,
    sparse_rows,
    table_rows,
)
from placer.report.run_files import RunEnd, StoredRows
from placer.report.step.facts import SliceFacts, StepTime, ThreadRow
from placer.system.resources import find_file


def load(name: str, *overrides: str) -> LoadedBuild:
    return load_build(find_file(f"specs/{name}.yaml"), overrides=overrides)


def balance(*overrides: str) -> str:
    build = load("digits", *overrides)
    return balance_of(build.plan, build.graphs[0])


def shares(build: LoadedBuild) -> list[float]:
    return [row.share for row in table_rows(build.plan)]


def test_memory_of_equal_processes_is_one_row() -> None:
    workers, ps0, ps1 = memory_rows(load("digits").plan)
    assert workers.processes == "worker:0-1"
    assert (workers.parameters, workers.slots) == (0, 0)
    assert (ps0.parameters, ps0.slots) == (32_768, 65_536)
    assert ps1.parameters == 5_672
    assert ps0.devices == {"cpu:0": (ps0.parameters + ps0.slots + ps0.activations, 0)}


def test_memory_has_the_limit_of_each_device() -> None:
    devices = (
        "nodes.worker.devices={cpu: {memory: 1GiB}, gpu: {count: 8, memory: 2GiB}}"
    )
    (row,) = memory_rows(load("cnn_gpus", devices).plan)
    assert row.limit == 1 << 30
    assert row.devices["cpu:0"] == (538_912, 1 << 30)
    assert row.devices["gpu:0-7"] == (454_080, 2 << 30)


def test_tables_have_their_share_of_the_mean() -> None:
    first, second = table_rows(load("digits").plan)
    assert (first.node, first.parameters) == ("ps:0", ("h1.w",))
    assert second.parameters == ("h1.b", "logits.w", "logits.b")
    assert first.share + second.share == pytest.approx(2)
    (workers,) = table_rows(load("digits_without_server").plan)
    assert (workers.node, workers.share) == ("worker:0-1", 1.0)


def test_sparse_tables_have_their_size_after_a_run() -> None:
    plan = load("wide_deep_sparse").plan
    end = RunEnd("finished", tables={"wide.table": StoredRows(10, 800)})
    wide, vectors = sparse_rows(plan, end)
    assert (wide.name, wide.nodes, wide.rows, wide.nbytes) == (
        "wide.table",
        "ps:0-1",
        10,
        800,
    )
    assert (vectors.rows, vectors.nbytes) == (None, None)
    assert memory_of_rows([wide, vectors]).endswith("known only after a run.")
    on = {
        "wide.table": {"ps:0": 300, "ps:1": 500},
        "vectors.table": {"ps:0": 100, "ps:1": 200},
    }
    both = sparse_rows(plan, RunEnd("finished", table_bytes=on))
    assert memory_of_rows(both).endswith("took 400 bytes on ps:0, 700 bytes on ps:1.")


def test_a_parameter_below_min_block_explains_the_balance() -> None:
    assert balance() == (
        "ps:0 stores 32.8 kB without slots, 1.70 times the mean of 19.2 kB: h1.w is one block, because"
        " its 8,192 elements are at most min_block (8,192)."
        " 'train.slicing.min_block: 4096' divides it over 2 servers."
    )


def test_the_advised_min_block_makes_the_balance_better() -> None:
    before = shares(load("digits"))
    after = shares(load("digits", "train.slicing.min_block=4096"))
    assert max(after) < max(before)
    three = shares(load("digits", "nodes.ps.count=3", "train.slicing.min_block=2730"))
    assert max(three) < 1.2


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            ["nodes.ps.count=3", "train.slicing.min_block=4096"],
            "h1.w is 2 blocks, because its 8,192 elements are at most 2 x min_block",
        ),
        (
            ["train.slicing.rounding=floor", "train.slicing.min_block=5000"],
            "its 8,192 elements are fewer than 2 x min_block (5,000).",
        ),
        (
            ["train.slicing.dispatch=round_robin", "train.slicing.min_block=4096"],
            "'dispatch: round_robin' assigns blocks to servers in turn",
        ),
        (
            ["train.slicing.min_block=1", "nodes.ps.count=40"],
            "it has 64 rows, and blocks have whole rows.",
        ),
    ],
)
def test_other_reasons_of_an_uneven_balance(overrides: list[str], reason: str) -> None:
    assert reason in balance(*overrides)


def test_a_whole_parameter_of_an_asynchronous_rule_explains_the_balance() -> None:
    build = load("lamb", "train.optimizer.update=async")
    assert "asynchronous lamb needs the norm" in balance_of(build.plan, build.graphs[0])


def test_parameters_on_workers_are_not_shared() -> None:
    build = load("two_workers")
    assert balance_of(build.plan, build.graphs[0]) == (
        "worker:1 stores 4.6 kB without slots, 1.76 times the mean of 2.6 kB: it stores h2.w, and only"
        " servers (nodes of kind ps) share parameters."
    )


def test_even_servers_need_no_reason() -> None:
    assert balance("train.slicing.dispatch=merged") == ""
    assert balance("nodes.ps.count=1") == ""


def test_a_declared_schedule_has_the_tasks_of_each_node() -> None:
    build = load("transformer_pipeline")
    first, second = declared_schedule(build.graphs[0], "1f1b")
    assert (first.label, second.label) == ("worker:0", "worker:1")
    assert round(first.busy, 2) == 0.87
    names = [f"{task.name}.{task.microbatch}" for task in first.tasks[:4]]
    assert names == ["forward.0", "forward.1", "backward.0", "forward.2"]
    assert second.tasks[0].start == first.tasks[0].end
    assert max(task.end for task in first.tasks) == 1.0
    assert declared_schedule(load("digits").graphs[0], "1f1b") == ()


def test_waits_and_messages_are_gaps_of_a_measured_schedule() -> None:
    declared = declared_schedule(load("transformer_pipeline").graphs[0], "1f1b")
    slices = (
        SliceFacts(0.0, 2.0, "step", "step 7", 0),
        SliceFacts(0.0, 1.0, "step", "backward.3", 1),
        SliceFacts(0.2, 0.6, "receive", "receive", 2),
        SliceFacts(0.2, 0.5, "wait", "wait for worker:1", 3),
        SliceFacts(0.6, 0.9, "compute", "backward", 2),
        SliceFacts(0.9, 1.0, "send", "send", 2),
        SliceFacts(1.0, 1.5, "compute", "apply", 1),
    )
    rows = (
        ThreadRow("worker:0", "program", slices),
        ThreadRow("worker:0", "service", slices[3:4]),
    )
    measured = StepTime(7, 2.0, 1, (), {}, rows, "", (), {})
    (row,) = measured_schedule(measured, declared)
    assert row.label == "worker:0"
    parts = [(t.name, t.microbatch, 2 * t.start, 2 * t.end) for t in row.tasks]
    assert parts == [
        ("backward", 3, 0.0, pytest.approx(0.2)),
        ("backward", 3, pytest.approx(0.6), pytest.approx(0.9)),
    ]
    assert row.busy == pytest.approx(0.25)
    assert measured_schedule(measured, ()) == ()
