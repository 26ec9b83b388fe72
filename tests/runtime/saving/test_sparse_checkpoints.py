"""Sparse tables in checkpoints: a run that continues has the rows of one that was not
interrupted, wherever its tables are."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.checkpoints import edit_manifest
from support.marks import slow_but
from support.saved_rows import assert_same_tables, rows_of

import placer
from placer.checkpoint.chunked_file import ChunkedFile
from placer.checkpoint.folder import list_checkpoints
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError, PlacerError, RunError
from placer.plan.plan import read_plan
from placer.report.outcome import result_json, result_lines
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving import resumed_tables
from placer.runtime.saving.row_files import groups_of_file, read_partitions
from placer.tables.sparse.table import SparseTable

pytestmark = pytest.mark.usefixtures("threads_watched")

PARTITIONS = 8


def build(
    folder,
    name,
    *,
    workers=1,
    servers=2,
    update="sync",
    table=None,
    rule="adam",
    rows=64,
):
    rng = np.random.default_rng(0)
    keys = rng.zipf(1.3, (rows, 3)).astype(np.uint64) * np.uint64(2**60 + 1)
    keys = keys.view("i8")
    y, time = rng.integers(0, 3, rows).astype(np.int32), 1000 - np.arange(rows)
    np.savez(folder / "rows.npz", keys=keys, y=y, time=time)
    settings = {"sparse": True, "dim": 4, "partitions": PARTITIONS, **(table or {})}
    nodes = {"worker": {"count": workers}}
    if servers:
        nodes["ps"] = {"count": servers}
    content = {
        "name": "saved",
        "precision": "float64",
        "nodes": nodes,
        "inputs": {
            "keys": "int64[batch, 3]",
            "y": "int32[batch]",
            "time": "int64[batch]",
        },
        "data": {
            "train": {"source": "npz:rows.npz", "batch": 16, "remainder": "keep"},
            "eval": {"source": "npz:rows.npz"},
        },
        "graph": [
            {"name": "emb", "op": "embedding", "in": "keys", **settings},
            {"name": "flat", "op": "flatten", "in": "emb"},
            {"name": "z", "op": "fc", "in": "flat", "size": 3},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        "train": {
            "minimize": "loss",
            "epochs": 3,
            "optimizer": {"op": rule, "learning_rate": 0.05, "update": update},
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    placer.compile(file, folder / name)
    return folder / name


TABLES = {
    "always": {},
    "counted": {"admit": {"count": 2}, "forget": {"unseen_steps": 3, "every": 2}},
    "filtered": {
        "admit": {"bloom": {"count": 2, "bytes": 4096}},
        "capacity": 24,
        "index": "compact",
    },
    "timed": {"forget": {"unseen_seconds": 20, "time": "time", "every": 2}},
}


@pytest.mark.parametrize(
    ("servers", "table"),
    slow_but([(3, "always")], product([0, 1, 3], TABLES)),
)
def test_a_resumed_run_has_the_same_rows(tmp_path, table, servers):
    first = build(tmp_path, "first", servers=2, table=TABLES[table])
    whole = run_in_threads(
        first,
        Options(
            checkpoint=tmp_path / "whole",
            checkpoint_every=5,
            checkpoint_keep=9,
        ),
    )
    second = build(tmp_path, "second", servers=servers, table=TABLES[table])
    resumed = run_in_threads(
        second,
        Options(
            resume=tmp_path / "whole" / "step-000005", checkpoint=tmp_path / "again"
        ),
    )
    assert resumed.eval == whole.eval
    last = "step-000012"
    assert_same_tables(tmp_path / "again" / last, tmp_path / "whole" / last, rtol=0)


def test_rows_are_those_of_the_step_although_the_run_goes_on(tmp_path):
    build_of = build(tmp_path, "b")
    run_in_threads(
        build_of,
        Options(checkpoint=tmp_path / "c", checkpoint_every=1, checkpoint_keep=99),
    )
    run_in_threads(build_of, Options(checkpoint=tmp_path / "d", steps=4))
    step = "step-000004"
    assert_same_tables(tmp_path / "c" / step, tmp_path / "d" / step, rtol=0)


def test_an_asynchronous_run_saves_and_continues(tmp_path):
    saved = tmp_path / "saved"
    made = build(tmp_path, "b", workers=2, update="half_async")
    run_in_threads(made, Options(checkpoint=saved, steps=6))
    result = run_in_threads(made, Options(resume=saved, checkpoint=saved))
    assert result.steps == 12
    before, after = (
        rows_of(saved / f"step-0000{step}", "emb.table").keys() for step in ("06", "12")
    )
    assert after >= before
    counts = json.loads(result_json(result))["tables"]["emb.table"]
    assert (counts["since"], counts["admitted"]) == (6, len(after) - len(before))
    text = f"table emb.table  {len(after)} rows  since step 6: {counts['admitted']} admitted"
    assert text in "\n".join(result_lines(result))


# The last batch of an epoch, before the checkpoint, has a row of one worker, or of each.
@pytest.mark.parametrize("rows", [65, 66])
def test_asynchronous_each_step_is_swept_once(tmp_path, rows):
    table = {"score": {"decay": 0.5}, "forget": {"every": 1}}
    made = build(tmp_path, "b", workers=2, update="half_async", table=table, rows=rows)
    saved = tmp_path / "saved"
    options = Options(checkpoint=saved, checkpoint_every=5, checkpoint_keep=9, steps=7)
    run_in_threads(made, options)
    run_in_threads(
        made,
        Options(resume=saved / "step-000005", checkpoint=tmp_path / "again", steps=7),
    )
    before = rows_of(saved / "step-000005", "emb.table")
    once = [row["scores"] for row in before.values() if row["count"] == 1]
    assert max(once) <= np.float32(0.1) / 2  # those of step 5 have been swept, too
    for folder in (saved, tmp_path / "again"):
        after = rows_of(folder / "step-000007", "emb.table")
        unseen = [k for k, row in before.items() if after[k]["count"] == row["count"]]
        assert unseen
        for key in unseen:
            assert after[key]["scores"] == before[key]["scores"] / 4


def test_rows_begin_a_new_run_with_another_rule(tmp_path):
    saved = tmp_path / "saved"
    run_in_threads(build(tmp_path, "b"), Options(checkpoint=saved, steps=4))
    other = build(tmp_path, "o", servers=1, rule="adagrad")
    with pytest.raises(CheckpointError, match=r"another optimizer: .*emb.table"):
        run_in_threads(other, Options(resume=saved))
    begun = tmp_path / "begun"
    run_in_threads(other, Options(init_params=saved, checkpoint=begun, steps=1))
    before, after = (
        rows_of(saved / "step-000004", "emb.table"),
        rows_of(begun / "step-000001", "emb.table"),
    )
    untouched = [k for k in before if k in after and after[k]["seen"] == 0]
    assert untouched
    for key in untouched:
        assert_array_equal(after[key]["values"][:4], before[key]["values"][:4])
        assert after[key]["count"] == 1


def test_a_run_continues_that_admits_and_forgets_keys_in_another_way(tmp_path):
    saved = tmp_path / "saved"
    first = build(tmp_path, "b", table=TABLES["filtered"])
    run_in_threads(first, Options(checkpoint=saved, steps=4))
    other = build(tmp_path, "o", table=TABLES["timed"])
    again = Options(resume=saved, checkpoint=tmp_path / "again", steps=5)
    run_in_threads(other, again)
    before, after = (
        rows_of(folder / step, "emb.table")
        for folder, step in (
            (saved, "step-000004"),
            (tmp_path / "again", "step-000005"),
        )
    )
    assert before.keys() <= after.keys()


def test_a_run_that_forgets_other_keys_has_other_bits(tmp_path, capsys):
    saved = tmp_path / "saved"
    run_in_threads(build(tmp_path, "b"), Options(checkpoint=saved, steps=1))
    other = build(tmp_path, "o", table={"forget": {"norm_below": 0.1}})
    run_in_threads(other, Options(resume=saved, steps=2))
    assert "not necessarily with the same bits" in capsys.readouterr().err


def test_with_another_rule_rows_keep_what_is_known_of_their_keys(tmp_path):
    saved, timed = tmp_path / "saved", TABLES["timed"]
    run_in_threads(
        build(tmp_path, "b", table=timed), Options(checkpoint=saved, steps=4)
    )
    other = build(tmp_path, "o", table=timed, rule="adagrad")
    again = Options(resume=saved, partial=True, checkpoint=tmp_path / "again", steps=5)
    run_in_threads(other, again)
    before, after = (
        rows_of(folder / step, "emb.table")
        for folder, step in (
            (saved, "step-000004"),
            (tmp_path / "again", "step-000005"),
        )
    )
    untouched = [k for k in before if k in after and after[k]["seen"] < 5]
    assert untouched
    for key in untouched:
        for name in ("seen", "count", "times"):
            assert after[key][name] == before[key][name]
        assert_array_equal(after[key]["values"][:4], before[key]["values"][:4])
        assert_array_equal(after[key]["values"][4:8], np.full(4, 0.1))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"dim": 5}, r"rows of float64\[4\]"), ({"partitions": 16}, "8 partitions")],
)
def test_a_table_of_another_form_is_refused(tmp_path, change, message):
    saved = tmp_path / "saved"
    run_in_threads(build(tmp_path, "b"), Options(checkpoint=saved, steps=2))
    other = build(tmp_path, "o", table=change)
    with pytest.raises(PlacerError, match=message):
        run_in_threads(other, Options(resume=saved))


@pytest.mark.parametrize("servers", [0, 1, 3])
def test_a_run_that_shrinks_forgets_keys_of_all_partitions_first(tmp_path, servers):
    """Each sweep takes 1000 steps, so that the run itself forgets nothing."""
    table = {"forget": {"unseen_steps": 1, "every": 1000}}
    first = build(tmp_path, "first", servers=2, table=table)
    run_in_threads(first, Options(steps=4, checkpoint=tmp_path / "first-4"))
    saved = rows_of(tmp_path / "first-4" / "step-000004", "emb.table")
    second = build(tmp_path, "second", servers=servers, table=table)
    options = {"resume": tmp_path / "first-4", "steps": 5}
    kept, shrunk = (
        run_in_threads(second, Options(**options, shrink=shrink)).tables["emb.table"]
        for shrink in (False, True)
    )
    old = sum(int(row["seen"]) < 3 for row in saved.values())
    assert old > 0
    assert kept["forgotten"] == 0
    assert shrunk["forgotten"] == old


def test_a_run_that_has_ended_saves_what_it_shrinks(tmp_path):
    """`--shrink` without a step to train, and without checkpoints, has no effect."""
    built = build(
        tmp_path,
        "b",
        table={"forget": {"unseen_steps": 1, "every": 1000}},
        update="async",
    )
    kept = tmp_path / "kept"
    run_in_threads(built, Options(steps=4, checkpoint=kept))
    before = rows_of(kept / "step-000004", "emb.table")
    options = {"resume": kept, "steps": 4, "shrink": True}
    with pytest.raises(
        PlacerError, match=r"\(--shrink\) has no effect .* after step 4"
    ):
        run_in_threads(built, Options(**options))
    result = run_in_threads(built, Options(**options, checkpoint=kept))
    (path, last), (_, first) = list_checkpoints(kept)
    assert (last.progress, path.name) == (first.progress, "step-000004-2")
    after = rows_of(path, "emb.table")
    forgotten = result.tables["emb.table"]["forgotten"]
    assert len(after) == len(before) - forgotten < len(before)
    for key, row in after.items():
        assert_array_equal(row["values"], before[key]["values"])


def test_shrinking_needs_a_checkpoint(tmp_path):
    with pytest.raises(PlacerError, match=r"'shrink' .* needs 'resume'"):
        placer.launch(build(tmp_path, "b"), shrink=True)


def test_counts_of_keys_are_not_read_as_scores(tmp_path):
    saved = tmp_path / "saved"
    counted = build(tmp_path, "b", table={"admit": {"count": 2}})
    run_in_threads(counted, Options(checkpoint=saved, steps=2))
    scored = {"admit": {"score": 1.0}, "score": {"show": 1}}
    other = build(tmp_path, "o", table=scored)
    with pytest.raises(
        PlacerError, match=r"stores occurrences and step for keys without"
    ):
        run_in_threads(other, Options(resume=saved))


def test_rows_begin_a_new_run_that_counts_keys_in_another_way(tmp_path):
    saved, begun = tmp_path / "saved", tmp_path / "begun"
    counted = build(tmp_path, "b", table={"admit": {"count": 2}})
    run_in_threads(counted, Options(checkpoint=saved, steps=4))
    scored = {"admit": {"score": 1.0}, "score": {"show": 1}}
    other = build(tmp_path, "o", table=scored)
    run_in_threads(other, Options(init_params=saved, checkpoint=begun, steps=1))
    before = rows_of(saved / "step-000004", "emb.table")
    assert before.keys() <= rows_of(begun / "step-000001", "emb.table").keys()


def test_small_partitions_are_read_together(tmp_path, monkeypatch):
    saved = tmp_path / "saved"
    run_in_threads(build(tmp_path, "b", servers=1), Options(checkpoint=saved, steps=4))
    checkpoint, read = Checkpoint(saved / "step-000004"), []
    monkeypatch.setattr(
        ChunkedFile, "_read_chunk", lambda _, *chunk: read.append(chunk)
    )
    numbers = (("emb.table", number) for number in range(PARTITIONS))
    assert len(list(read_partitions(checkpoint, numbers, finite=False))) == PARTITIONS
    assert len(read) == 1


def test_a_damaged_file_is_not_loaded(tmp_path):
    saved = tmp_path / "saved"
    made = build(tmp_path, "b")
    options = Options(checkpoint=saved, checkpoint_every=2, checkpoint_keep=5, steps=4)
    run_in_threads(made, options)
    damage(saved / "step-000004" / "ps-1.rows.safetensors")
    with pytest.raises(CheckpointError, match=r"ps-1.rows.safetensors"):
        run_in_threads(made, Options(resume=saved / "step-000004"))
    # Of a folder, the checkpoint before it is taken.
    result = run_in_threads(made, Options(resume=saved, steps=5))
    assert result.steps == 5


@pytest.mark.parametrize(
    "change",
    [
        {"files": [["ps-1.rows.safetensors", 0, 4], ["ps-0.rows.safetensors", 4, 8]]},
        {"partitions": 4, "files": [["ps-1.rows.safetensors", 0, 4]]},
        {"dim": 9},
        {"slots": ["mu"]},
        {"dtype": "float32"},
        {"rule": "rowwise_adam"},
    ],
)
def test_files_that_do_not_have_the_rows_of_the_manifest_are_refused(tmp_path, change):
    made, saved = build(tmp_path, "b"), tmp_path / "saved"
    run_in_threads(made, Options(checkpoint=saved, steps=1))
    (checkpoint,) = saved.glob("step-*")
    edit_manifest(checkpoint, lambda each: each["sparse"]["emb.table"].update(change))
    with pytest.raises(
        CheckpointError, match="does not contain the rows of partition 0 of"
    ):
        run_in_threads(made, Options(resume=checkpoint))


@pytest.mark.parametrize("file", ["ps-1.safetensors", "ps-1.rows.safetensors", ""])
def test_nodes_that_do_not_see_a_folder_load_one_checkpoint(
    tmp_path, monkeypatch, capsys, file
):
    made, saved = build(tmp_path, "b"), tmp_path / "saved"
    options = Options(checkpoint=saved, checkpoint_every=1, checkpoint_keep=5, steps=3)
    run_in_threads(made, options)
    whole = (saved / "step-000003").rename(tmp_path / "whole")
    if file:
        damage(saved / "step-000002" / file)
    else:
        load = SparseTable.load_partition
        failing = iter([RunError("no memory")])

        def fail_once(table, partition, *args, **kwargs):
            if partition == 5 and (error := next(failing, None)):
                raise error
            load(table, partition, *args, **kwargs)

        monkeypatch.setattr(SparseTable, "load_partition", fail_once)
    monkeypatch.setattr(resumed_tables, "_sees", lambda choice: False)
    again = tmp_path / "again"
    run_in_threads(made, Options(resume=saved, checkpoint=again, steps=3))
    assert "trying an earlier checkpoint" in capsys.readouterr().err
    assert_same_tables(again / "step-000003", whole, rtol=0)


def damage(file):
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("array", ["values", "scalars", "scores"])
def test_rows_that_are_not_finite_are_not_saved(tmp_path, array):
    """A row's slots and its score count, whatever its values are."""
    folder = build(tmp_path, "b", servers=1)
    plan, node = read_plan(folder), "ps:0"

    class Save:
        def layout(self, partition):
            return {n: (str(a.dtype), a.shape) for n, a in self.partition(0).items()}

        def partition(self, partition):
            arrays = {
                "keys": np.arange(2, dtype=np.uint64),
                "values": np.zeros((2, 4), np.float32),
                "scalars": np.zeros(2, np.float32),
                "scores": np.zeros(2, np.float32),
            }
            arrays[array].flat[-1] = np.inf
            return arrays

    (table,) = (each.name for each in plan.sparse_tables)
    with pytest.raises(CheckpointError, match=f"a row of '{table}' is not finite"):
        list(groups_of_file(plan, node, {table: Save()}, finite=True))
    assert list(groups_of_file(plan, node, {table: Save()}, finite=False))
