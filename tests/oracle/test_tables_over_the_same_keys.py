"""Tables over the same keys train, save and predict as tables that share nothing, bit by bit."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.marks import slow_but
from support.saved_rows import assert_same_tables

import placer
from placer.compiler import passes
from placer.compiler.passes.exchange.sparse_tables import sparse_tables
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.training_loop import make_sparse_tables

SERVERS = "/node:ps/cpu"
ROWS, BATCH = 40, 16
SCORED = {"score": {"show": "shows", "click": "clicks"}}


def spec(change: Callable[[dict[str, Any]], None] = lambda content: None) -> Any:
    """A model with two tables over `ids` and `other`, and a third one over `other`."""
    adagrad = {"op": "adagrad", "learning_rate": 0.3, "place": SERVERS}
    content: dict[str, Any] = {
        "name": "shared",
        "precision": "float64",
        "nodes": {"worker": {"count": 2}, "ps": {"count": 2}},
        "inputs": {
            "ids": "int64[batch, 3]",
            "other": "int64[batch]",
            "time": "int64[batch]",
            "shows": "float64[batch]",
            "clicks": "float64[batch, 1]",
            "y": "float64[batch, 1]",
        },
        "data": {
            "train": {"source": "npz:rows.npz", "batch": BATCH, "remainder": "keep"},
            "eval": {"source": "npz:rows.npz", "batch": BATCH},
        },
        "graph": [
            {"name": "wide", "dim": 1, "in": "ids", "combiner": "sum", "padding": 3},
            {"name": "deep", "dim": 4, "in": "ids", "combiner": "sum", "padding": 3},
            {"name": "more", "in": "other", "params": {"table": "deep.table"}},
            {"name": "same", "in": "other", "params": {"table": "wide.table"}},
            {"name": "alone", "dim": 2, "in": "other"},
            {"name": "h", "op": "concat", "in": ["deep", "more", "alone"]},
            {"name": "z", "op": "fc", "in": "h", "size": 1},
            {"name": "logit", "op": "add", "in": ["wide", "z"]},
            {"name": "both", "op": "add", "in": ["logit", "same"]},
            {"name": "loss", "op": "sigmoid_cross_entropy", "in": ["both", "y"]},
            {"name": "chance", "op": "sigmoid", "in": "both"},
        ],
        "train": {
            "minimize": "loss",
            "epochs": 2,
            "optimizer": [
                {**adagrad, "op": "adam", "match": "wide.*"},
                {**adagrad, "match": "*.table"},
                adagrad,
            ],
        },
        "predict": {"outputs": ["chance"]},
    }
    sizes = {"wide": 1, "same": 1}
    for op in content["graph"][:5]:
        table = {"op": "embedding", "sparse": True, "dim": sizes.get(op["name"], 4)}
        op.update({**table, **op})
    change(content)
    return content


def write_rows(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        folder / "rows.npz",
        ids=rng.integers(0, 20, (ROWS, 3)),
        other=rng.integers(0, 20, ROWS),
        time=1000 + 10 * np.arange(ROWS),
        shows=rng.uniform(0.5, 2.0, ROWS),
        clicks=rng.integers(0, 2, (ROWS, 1)).astype(np.float64),
        y=rng.integers(0, 2, (ROWS, 1)).astype(np.float64),
    )


def train(
    content: Any,
    folder: Path,
    name: str,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Train; return the folder of the checkpoint, and the evaluation."""
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    placer.compile(file, folder / name)
    saved = folder / f"{name}.checkpoints"
    result = run_in_threads(folder / name, Options(checkpoint=saved, **options))
    checkpoint = max(saved.glob("step-*"))
    return checkpoint, result.eval


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler give each table its own keys."""
    alone = functools.partial(sparse_tables, shares_keys=False)
    monkeypatch.setattr(
        passes,
        "SHARED_PASSES",
        tuple(
            passes.Pass(each.name, alone, each.needs, each.gives)
            if each.name == "sparse_tables"
            else each
            for each in passes.SHARED_PASSES
        ),
    )


def nothing(content: Any) -> None:
    """Two workers and two servers, with an optimizer for each table."""


def on_workers(content: Any) -> None:
    del content["nodes"]["ps"]
    for optimizer in content["train"]["optimizer"]:
        optimizer["place"] = "/node:worker/cpu"


def in_one_process(content: Any) -> None:
    on_workers(content)
    content["nodes"]["worker"]["count"] = 1


def on_heter(content: Any) -> None:
    content["nodes"]["heter"] = {"count": 2}
    for op in content["graph"][5:]:
        op["place"] = "/node:heter/cpu"


def microbatches(content: Any) -> None:
    content["train"]["microbatches"] = 2


def clipped(content: Any) -> None:
    content["train"]["clip"] = {"global_norm": 0.1}


def clipped_one_by_one(content: Any) -> None:
    wide, deep, _ = content["train"]["optimizer"]
    wide["clip"], deep["clip"] = {"norm": 0.02}, {"value": 0.01}


def counted(content: Any) -> None:
    """One table forgets by time and scores, the others admit by count or have a capacity."""
    wide, deep, more, same, alone = content["graph"][:5]
    forget = {"forget": {"unseen_seconds": 150, "time": "time", "every": 2}}
    for op in (deep, more):
        op |= {**SCORED, **forget, "admit": {"score": 1.5}}
    for op in (wide, same):
        op |= {"admit": {"count": 2}, **forget}
    alone["capacity"] = 256


def free(content: Any) -> None:
    content["nodes"]["worker"]["count"] = 1
    for optimizer in content["train"]["optimizer"]:
        optimizer["update"] = "half_async"


def free_and_counted(content: Any) -> None:
    free(content)
    counted(content)
    clipped_one_by_one(content)


def computed(content: Any) -> None:
    op = {"name": "turned", "op": "reshape", "in": "ids", "shape": ["batch", 3]}
    content["graph"].insert(0, op)
    for op in content["graph"][1:3]:
        op["in"] = "turned"


def frozen(content: Any) -> None:
    content["parameters"] = [{"match": "wide.table", "trainable": False}]
    del content["train"]["optimizer"][0]


CHANGES = {
    each.__name__: each
    for each in (
        nothing, on_workers, in_one_process, on_heter, microbatches, clipped,
        clipped_one_by_one, counted, free, free_and_counted, computed, frozen,
    )
}  # fmt: skip


FAST = ("counted", "free_and_counted")


@pytest.mark.parametrize("change", slow_but(FAST, CHANGES))
def test_tables_that_share_keys_have_the_bits_of_tables_that_do_not(
    tmp_path, monkeypatch, change
):
    write_rows(tmp_path)
    content = spec(CHANGES[change])
    shared, evaluated = train(content, tmp_path, "shared")
    apart(monkeypatch)
    alone, expected = train(content, tmp_path, "alone")
    assert evaluated == expected
    assert_same_tables(shared, alone, rtol=0)
    counts = [count_calls(tmp_path / name) for name in ("shared", "alone")]
    less = np.subtract(*counts[::-1])
    assert np.all(less[: 2 if change == "frozen" else 4] > 0), counts


@pytest.mark.slow
def test_workers_without_lockstep_repeat_a_recorded_order(tmp_path):
    def without_lockstep(content: Any) -> None:
        for optimizer in content["train"]["optimizer"]:
            optimizer["update"] = {"async": {"max_staleness": 2}}

    write_rows(tmp_path)
    content, order = spec(without_lockstep), tmp_path / "order"
    first, evaluated = train(content, tmp_path, "first", {"record_order": order})
    again, expected = train(content, tmp_path, "again", {"replay_order": order})
    assert evaluated == expected
    assert_same_tables(first, again, rtol=0)


def test_predictions_and_exports_are_those_of_tables_that_share_nothing(
    tmp_path, monkeypatch
):
    """An output needs one of the tables only."""
    write_rows(tmp_path)
    found = {}
    for name in ("shared", "alone"):
        if name == "alone":
            apart(monkeypatch)
        content = spec(in_one_process)
        content["predict"]["outputs"].append("z")
        build = tmp_path / name
        saved, _ = train(content, tmp_path, name)
        options = {"params": saved, "raw": True, "in_process": True}
        with np.load(tmp_path / "rows.npz") as rows:
            predicted = placer.predict(build, dict(rows), **options)
            of_one = placer.predict(build, dict(rows), outputs=["z"], **options)
        folder = placer.export(build, tmp_path / f"{name}.export", params=saved).folder
        files = {p.name: p.read_bytes() for p in sorted(folder.glob("*.parquet"))}
        found[name] = [predicted, of_one, files]
    for ours, theirs in zip(*(each[:2] for each in found.values()), strict=True):
        assert ours.keys() == theirs.keys()
        for output, array in ours.items():
            assert_array_equal(array, theirs[output])
    assert found["shared"][2] == found["alone"][2]
    assert len(found["shared"][2]) == 3


def count_calls(build: Path) -> list[int]:
    """Return how often the programs of a build collect, look up, merge and update."""
    programs = {node.program for node in read_plan(build).nodes}
    text = "".join((build / path).read_text(encoding="utf-8") for path in programs)
    calls = "distinct_keys distributed_lookup_table sum_by_key update_rows"
    return [text.count(f"node.{call}(") for call in calls.split()]


def test_tables_with_equal_rules_share_an_index_in_the_plan(tmp_path):
    write_rows(tmp_path)
    for name, change, shared in (
        ("plain", nothing, {"deep.table": "wide.table"}),
        ("counted", counted, {}),
        ("frozen", frozen, {}),
    ):
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(spec(change)))
        plan = placer.compile(file, tmp_path / name)
        found = {each.name: each.index_of for each in plan.sparse_tables}
        assert {n: of for n, of in found.items() if of is not None} == shared


def test_tables_whose_checkpoint_has_other_keys_have_indexes_of_their_own(tmp_path):
    """A run with other rules has saved them. The bits are those of separate tables."""
    write_rows(tmp_path)

    def of_other_rules(content: Any) -> None:
        for op in content["graph"][:4:3]:
            op["admit"] = {"count": 9}

    saved, _ = train(spec(of_other_rules), tmp_path, "first", {"steps": 3})
    told: list[str] = []
    found = []
    for name, shares in (("shared", True), ("alone", False)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(make_sparse_tables, "SHARES_INDEXES", shares)
            file, folder = tmp_path / f"{name}.yaml", tmp_path / f"{name}.kept"
            file.write_text(json.dumps(spec()))
            placer.compile(file, tmp_path / name)
            options = Options(resume=saved, checkpoint=folder)

            def watch(event: Any) -> None:
                if type(event).__name__ == "Notice":
                    told.append(event.message)

            result = run_in_threads(tmp_path / name, options, watch=watch)
            found.append((max(folder.glob("step-*")), result.eval))
    (ours, evaluated), (theirs, expected) = found
    assert evaluated == expected
    assert_same_tables(ours, theirs, rtol=0)
    text = "table deep.table has other keys or counts in the checkpoint than wide.table"
    assert sorted({each.partition(",")[0] for each in told if "table" in each}) == [
        f"ps:0: {text}",
        f"ps:1: {text}",
    ]
