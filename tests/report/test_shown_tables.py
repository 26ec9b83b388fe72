"""What the command line says of sparse tables."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from support.sparse_specs import write_sparse_spec

from placer.compiler.build_or_spec import LoadedBuild, load_build
from placer.plan.table_text import table_lines
from placer.report.explain import BuildInfo, explain
from placer.report.server_tables import table_views
from placer.report.summary import summarize

ADAGRAD = "adagrad: learning rate 0.1, initial_accumulator_value 0.1, eps 1e-07;"
SLOTS = "slots sum_of_squares = 0.1"


def load(folder: Path, **settings: Any) -> LoadedBuild:
    return load_build(write_sparse_spec(folder, **settings))


def explained(build: LoadedBuild, name: str) -> list[str]:
    info = BuildInfo(build.plan, build.graphs, build.op_positions)
    return list(explain(info, name))


def shown(views: Iterable[RenderableType]) -> list[str]:
    console = Console(file=io.StringIO(), width=250)
    for view in views:
        console.print(view)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_explain_a_table(tmp_path: Path) -> None:
    forget = {"unseen_steps": 100, "norm_below": 0.5, "every": 32}
    build = load(
        tmp_path, user={"admit": {"count": 2}, "forget": forget, "rows": 100_000}
    )
    lines = explained(build, "u.table")
    assert lines[1].startswith("  written at clicks.yaml:")
    del lines[1]
    assert lines[:16] == [
        "u.table: sparse table float32[keys, 4], trained",
        "  stored on ps:0-1: a parameter is stored with its optimizer (adagrad)",
        "    ps:0: partitions 0-127 of 256",
        "    ps:1: partitions 128-255 of 256",
        f"  table 1: {ADAGRAD} {SLOTS}",
        "  values begin as uniform(-0.05, 0.05)",
        "  a key gets a row at its 2nd occurrence; until then it reads 0",
        "  a key is forgotten if it has not occurred for 100 steps, or if it has values"
        " with a norm below 0.5; a sweep takes 32 steps",
        "  a row takes 71-83 bytes: 16 of values, 16 of slots, 16 of metadata, 23-35 of"
        " the index",
        "  without rows it takes 65.5 kB on each node, and at least 1.6 MB once each"
        " partition has a row: a partition allocates 256 rows at a time, 12.3 kB",
        "  a counted key without a row takes 23-35 bytes",
        "  100,000 rows expected, at least 8.6 MB, 4.3 MB on each node",
        "  its rows, their keys and gradients are sent between nodes:",
        "    edge 1: worker:0-1 -> ps:0-1, u.keys, each node's keys, to the nodes that store"
        " them; at most 720 bytes per step, in a message of 1,440 bytes together with"
        " i.keys",
        "    edge 4: ps:0-1 -> worker:0-1, u.found, to each node the rows of its keys; at"
        " most 1,024 bytes per step, in a message of 3,072 bytes together with i.found",
        "    edge 5: worker:0-1 -> ps:0-1, u.rows.grad, each node's row gradients, to the"
        " nodes that store the rows; at most 1,024 bytes per step, in a message of 3,072"
        " bytes together with i.rows.grad",
    ]


def test_explain_what_a_table_is_told_to_do(tmp_path: Path) -> None:
    bloom = {"bloom": {"count": 3, "bytes": 65536}}
    bounded = {"capacity": 1000, "evict": "lfu", "bounds": [-1, 1], "rows": 5000}
    scored = {"admit": {"score": 2}, "score": {"show": 1, "decay": 0.9}}
    build = load(tmp_path, user={"admit": bloom} | bounded, item=scored)
    text = "\n".join(explained(build, "u.table"))
    for line in (
        "a key gets a row at about its 3rd occurrence; until then it reads 0",
        "it has at most 1,000 rows, shared equally by the partitions; a full"
        " partition evicts its least frequently used rows",
        "elements are clipped to -1 to 1 after each update",
        "counters of keys without a row take 65.5 kB on all nodes together",
        "1,000 of 5,000 expected rows, at least",
    ):
        assert f"\n  {line}" in text
    text = "\n".join(explained(build, "i.table"))
    for line in (
        "a key gets a row once its score is 2; until then it reads 0",
        "the score of a key grows by 0.1 when it is shown and not clicked, and by 1"
        " when it is clicked; each sweep multiplies it by 0.9",
        "a row takes 107-119 bytes: 32 of values, 32 of slots, 4 of its score, 16 of"
        " metadata, 23-35 of the index",
    ):
        assert f"\n  {line}" in text


def test_explain_what_keys_read_in_a_table_that_is_not_trained(tmp_path: Path) -> None:
    file = write_sparse_spec(tmp_path)
    frozen = [{"match": "*.table", "trainable": False}]
    file.write_text(json.dumps({**json.loads(file.read_text()), "parameters": frozen}))
    build = load_build(file)
    assert "  a key without a row reads 0" in explained(build, "u.table")
    first = "  a key without a row reads its initial values"
    assert first in explained(build, "i.table")


@pytest.mark.parametrize(
    "settings",
    [{"microbatches": 2}, {"servers": 0}, {"clip": {"global_norm": 1.0}}],
    ids=["microbatches", "on workers", "a norm"],
)
def test_every_op_and_value_is_explained(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    build = load(tmp_path, **settings)
    for graph in build.graphs:
        for name in {*graph.values, *(op.name for op in graph.ops)}:
            assert explained(build, name)
    keys = "\n".join(explained(build, "u.keys"))
    assert (
        "u.keys is by key: each node has the rows of the keys in its part of the batch"
        in keys
    )
    rows = "\n".join(explained(build, "u.rows"))
    assert (
        "u.rows is by key: each node has the rows of the keys that it looks up" in rows
    )
    assert "exchange = give_rows" in rows


def test_a_summary_counts_what_is_stored_for_each_key(tmp_path: Path) -> None:
    build = load(tmp_path, item={"rows": 10_000})
    lines = shown(summarize(build.plan, build.graphs[0]))
    end = lines[2].index("params") + len("params")
    params = {line.split()[0]: line[end - 9 : end].strip() for line in lines[3:13]}
    assert [params[name] for name in ("u", "f", "i", "flat", "z")] == [
        "4 per key",
        "shared",
        "8 per key",
        "0",
        "66",
    ]
    at = next(i for i, line in enumerate(lines) if line.startswith("parameters "))
    assert [line[17:] for line in lines[at : at + 3]] == [
        "66 (264 bytes): 66 trainable; stored on ps:0-1",
        "u.table: width 4, 71-83 bytes a row, on ps:0-1",
        "i.table: width 8, 103-115 bytes a row, on ps:0-1; 10,000 rows expected, at"
        " least 5.5 MB, 2.8 MB on each node",
    ]
    assert lines[at + 1].startswith("2 sparse tables")


def test_the_tables_of_a_node_have_numbers_also_without_blocks(tmp_path: Path) -> None:
    lines = shown(table_views(load(tmp_path, servers=3).plan))
    heads = [line.split("  ") for line in lines if line.startswith("ps:")]
    assert [head[:3] for head in heads] == [
        ["ps:0", "table 0", "dense"],
        ["ps:0", "table 1", "u.table"],
        ["ps:0", "table 2", "i.table"],
        ["ps:1", "table 0", "dense"],
        ["ps:1", "table 1", "u.table"],
        ["ps:1", "table 2", "i.table"],
        ["ps:2 has no blocks of dense tables"],
        ["ps:2", "table 1", "u.table"],
        ["ps:2", "table 2", "i.table"],
    ]
    assert heads[-1][3:] == [
        "partitions 170-255 of 256, rows of width 8, 103-115 bytes each, 65.5 kB"
        " without rows",
        f"{ADAGRAD} {SLOTS}",
    ]


def test_an_asynchronous_table_says_its_mode(tmp_path: Path) -> None:
    sgd = {"op": "sgd", "learning_rate": 0.1, "update": "half_async"}
    build = load(tmp_path, optimizer=sgd | {"place": "/node:ps/cpu"})
    lines = explained(build, "u.table")
    mode = "sgd: learning rate 0.1; no slots; update half_async"
    assert f"  table 1: {mode}" in lines
    assert (
        len(
            [
                line
                for line in table_lines(build.plan, build.plan.node("ps:0"))
                if mode in line
            ]
        )
        == 3
    )


def test_a_server_lists_its_tables_and_the_barrier(tmp_path: Path) -> None:
    plan = load(tmp_path, servers=1).plan
    assert list(table_lines(plan, plan.node("ps:0"))) == [
        "ps:0 has 3 of 3 tables:",
        "  table  kind     name     width  stored here              optimizer",
        f"  0      dense    dense       66  66 elements in 2 blocks  {ADAGRAD} {SLOTS}",
        f"  1      sparse   u.table      4  all 256 partitions       {ADAGRAD} {SLOTS};"
        " values begin as uniform(-0.05, 0.05)",
        f"  2      sparse   i.table      8  all 256 partitions       {ADAGRAD} {SLOTS};"
        " values begin as uniform(-0.05, 0.05)",
        "  3      barrier                  3 processes",
    ]


def test_a_plan_counts_its_sparse_tables(tmp_path: Path) -> None:
    text = repr(load(tmp_path).plan)
    assert text.startswith(
        "<Plan of clicks: worker:0-1, ps:0-1; 66 parameters, 2 sparse tables; 7 edges,"
    )
