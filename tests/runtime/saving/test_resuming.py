"""A run that continues from a checkpoint is the run that was not interrupted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from safetensors.numpy import load_file
from support.checkpointed import build, check_equal, lines, run, spec

from placer.checkpoint.folder import list_checkpoints
from placer.checkpoint.manifest_file import read_manifest
from placer.errors import CheckpointError, PlacerError, RunError, SpecWarning
from placer.launcher.checks import check_launch
from placer.plan.plan import read_plan, sha256, to_json, with_digest
from placer.report.outcome import best_lines
from placer.runtime.control.options import Options
from placer.runtime.saving.same_model import uncompared_rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without an interruption, with a checkpoint after every step."""
    folder = tmp_path_factory.mktemp("whole")
    result = run(
        build(folder),
        history=folder / "history",
        save_params=folder / "params",
        checkpoint=folder / "checkpoints",
        checkpoint_every=1,
        checkpoint_keep=100,
    )
    assert result.steps == 24
    return folder, result


@pytest.mark.parametrize("step", [1, 6, 8, 23])
def test_a_resumed_run_has_the_same_bits(step, whole, tmp_path):
    folder, expected = whole
    shutil.copy(folder / "history", tmp_path / "history")
    result = run(
        folder / "b",
        history=tmp_path / "history",
        save_params=tmp_path / "params",
        resume=folder / "checkpoints" / f"step-{step:06d}",
    )
    check_equal(tmp_path / "params", folder / "params")
    assert lines(tmp_path / "history") == lines(folder / "history")
    assert (result.steps, result.metrics, result.eval) == (
        expected.steps,
        expected.metrics,
        expected.eval,
    )


def test_a_run_can_be_continued_beyond_its_end(whole, tmp_path):
    folder, _ = whole
    options = {"checkpoint": tmp_path / "checkpoints", "steps": 9}
    run(folder / "b", history=tmp_path / "first", **options)
    options["steps"] = 24
    run(
        folder / "b",
        resume=tmp_path / "checkpoints",
        history=tmp_path / "second",
        save_params=tmp_path / "params",
        **options,
    )
    check_equal(tmp_path / "params", folder / "params")
    assert lines(tmp_path / "second") == lines(folder / "history")[9:]
    steps = [m.progress.step for _, m in list_checkpoints(tmp_path / "checkpoints")]
    assert steps == [24, 18, 12]


def test_one_command_starts_a_run_and_continues_it(whole, tmp_path, capsys):
    folder, _ = whole
    own = {"checkpoint": tmp_path / "own", "resume": tmp_path / "own"}
    run(folder / "b", steps=5, **own)
    started = capsys.readouterr().err
    assert f"'{tmp_path / 'own'}' has no checkpoints yet: the run starts" in started
    run(folder / "b", save_params=tmp_path / "params", **own)
    assert "after step 5" in capsys.readouterr().err
    check_equal(tmp_path / "params", folder / "params")


def test_another_folder_without_checkpoints_is_no_start(whole, tmp_path):
    folder, _ = whole
    with pytest.raises(
        PlacerError, match=f"the folder '{tmp_path}/other' does not exist"
    ):
        run(folder / "b", checkpoint=tmp_path / "own", resume=tmp_path / "other")
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match="other' has no checkpoints"):
        run(folder / "b", checkpoint=tmp_path / "own", resume=tmp_path / "other")


def test_a_run_that_had_ended_has_the_same_result(whole, tmp_path, capsys):
    """It may have been killed between its last checkpoint and its result."""
    folder, expected = whole
    shutil.copy(folder / "history", tmp_path / "history")
    result = run(
        folder / "b",
        resume=folder / "checkpoints",
        history=tmp_path / "history",
        save_params=tmp_path / "params",
    )
    check_equal(tmp_path / "params", folder / "params")
    assert lines(tmp_path / "history") == lines(folder / "history")
    assert repr(result.metrics) == repr(expected.metrics)  # some are NaN
    assert repr(result.eval) == repr(expected.eval)
    assert "nothing is left to train after step 24" in capsys.readouterr().err


def test_a_run_cannot_end_before_its_checkpoint(whole):
    folder, _ = whole
    with pytest.raises(
        CheckpointError, match="of step 24, but the run ends after step 23"
    ):
        run(folder / "b", resume=folder / "checkpoints", steps=23)


PLACEMENTS = {
    "one node": {"nodes": {"worker": {}}, "train": {"optimizer": {"op": "adam"}}},
    "three servers": {"nodes": {"worker": {"count": 2}, "ps": {"count": 3}}},
    "one server and four workers": {"nodes": {"worker": {"count": 4}, "ps": {}}},
    "all-reduce": {"nodes": {"worker": {"count": 2}}},
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_another_placement_continues_a_run(placement, whole, tmp_path):
    folder, _ = whole
    changes = PLACEMENTS[placement]
    optimizer = dict(spec()["train"]["optimizer"])
    if "ps" not in changes["nodes"]:
        del optimizer["place"]
    model = spec(nodes=changes["nodes"], train={"optimizer": optimizer})
    run(
        build(tmp_path, model),
        resume=folder / "checkpoints" / "step-000008",
        history=tmp_path / "history",
        save_params=tmp_path / "params",
    )
    expected = load_file(folder / "params")
    for name, values in load_file(tmp_path / "params").items():
        np.testing.assert_allclose(values, expected[name], atol=2e-5, err_msg=name)
    last, expected_last = lines(tmp_path / "history")[-1], lines(folder / "history")[-1]
    assert last["eval"]["loss"] == pytest.approx(
        expected_last["eval"]["loss"], rel=1e-4
    )


def test_another_learning_rate_continues_a_run(whole, tmp_path):
    folder, _ = whole
    optimizer = dict(spec()["train"]["optimizer"], learning_rate=0.0)
    with pytest.warns(SpecWarning, match="'adam' trains nothing"):
        frozen = build(tmp_path, spec(train={"optimizer": optimizer}))
    start = folder / "checkpoints" / "step-000008"
    run(frozen, resume=start, save_params=tmp_path / "params")
    saved = load_file(tmp_path / "params")
    stored = {
        block: values
        for file in start.glob("*.safetensors")
        for block, values in load_file(file).items()
    }
    np.testing.assert_array_equal(saved["o.b"], stored["o.b"])


def test_a_metric_with_other_statistics_starts_over(whole, tmp_path):
    """The metrics of the epoch are then those of its later steps."""
    folder, _ = whole
    changed = spec()
    auc = changed["graph"][0]["ops"][-1]
    changed["graph"][0]["ops"][-1] = {**auc, "bins": 7}
    start = folder / "checkpoints" / "step-000008"
    history = tmp_path / "history"
    result = run(build(tmp_path, changed), resume=start, steps=12, history=history)
    later = [line["metrics"]["loss"] for line in lines(history)]
    rows = [4, 4, 4, 2]
    assert result.metrics["loss"] == pytest.approx(np.average(later, weights=rows))


def test_the_last_good_checkpoint_of_a_folder_is_taken(whole, tmp_path, capsys):
    folder, _ = whole
    kept = tmp_path / "checkpoints"
    for step in (6, 8, 9):
        name = f"step-{step:06d}"
        shutil.copytree(folder / "checkpoints" / name, kept / name)
    (kept / "step-000009" / "manifest.json").write_text("{")
    file = kept / "step-000008" / "ps-1.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    run(folder / "b", resume=kept, save_params=tmp_path / "params")
    check_equal(tmp_path / "params", folder / "params")
    err = capsys.readouterr().err
    assert "step-000009/manifest.json' is damaged" in err
    assert "ps-1.safetensors: the checksum of chunk 0 does not match" in err
    assert f"continuing after step 6 from {kept}/step-000006, with the same bits" in err
    with pytest.raises(CheckpointError, match="the checksum of chunk 0 does"):
        run(folder / "b", resume=kept / "step-000008")
    (kept / "step-000006" / "ps-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no readable checkpoint"):
        run(folder / "b", resume=kept)


def test_a_checkpoint_of_another_model_is_refused(whole, tmp_path, capsys):
    folder, _ = whole
    model = spec()
    ops = model["graph"][0]["ops"]
    ops[3]["name"], ops[4]["in"] = "out", "out"
    other = build(tmp_path, model)
    start = folder / "checkpoints" / "step-000008"
    with pytest.raises(CheckpointError) as error:
        run(other, resume=start)
    assert "not in the checkpoint: out.w, out.b" in error.value.message
    assert "not in the model: o.b, o.w" in error.value.message
    run(other, resume=start, partial=True)
    assert "warning: the checkpoint is used in part: not in the checkpoint: out.w" in (
        capsys.readouterr().err
    )
    ops[0]["name"], ops[1]["in"], ops[1]["name"], ops[2]["in"] = "g", "g", "m", "m"
    with pytest.raises(CheckpointError, match="another model 'resumed': ") as error:
        run(build(tmp_path, model | {"name": "other"}), resume=start)
    assert "hint: name a checkpoint of this model, or start" in str(error.value)
    optimizer = dict(spec()["train"]["optimizer"], op="momentum")
    model = spec(train={"optimizer": optimizer})
    with pytest.raises(CheckpointError, match=r"h.w \(adam, not momentum\)"):
        run(build(tmp_path, model), resume=start)
    model = spec()
    model["graph"][0]["ops"][0]["size"] = 9
    with pytest.raises(
        CheckpointError, match=r"h.w is float32\[6, 8\], but the model has"
    ):
        run(build(tmp_path, model), resume=start, partial=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 2}, "batch is 2, but was 4"),
        ({"shuffle": False}, "shuffle is false, but was true"),
        ({"seed": 5}, "seed is 5, but was 0"),
    ],
)
def test_another_order_of_rows_is_refused(change, message, whole, tmp_path):
    folder, _ = whole
    model = spec()
    model["data"]["train"] |= change
    with pytest.raises(CheckpointError, match=message):
        run(build(tmp_path, model), resume=folder / "checkpoints" / "step-000008")


def test_other_rows_are_refused(whole, tmp_path):
    folder, _ = whole
    other = build(tmp_path)
    rows = dict(np.load(tmp_path / "rows.npz"))
    rows["x"][17] += 1
    np.savez(tmp_path / "rows.npz", **rows)
    with pytest.raises(CheckpointError, match="'x' of row 17 has changed"):
        run(other, resume=folder / "checkpoints" / "step-000008")


def test_a_history_without_the_step_is_refused(whole, tmp_path):
    folder, _ = whole
    text = (folder / "history").read_text().splitlines(keepends=True)
    (tmp_path / "history").write_text("".join(text[:5]))
    with pytest.raises(PlacerError, match="has no line for step 8"):
        run(
            folder / "b",
            history=tmp_path / "history",
            resume=folder / "checkpoints" / "step-000008",
        )


def test_early_stopping_and_the_best_checkpoint_are_decided_at_their_step(tmp_path):
    """The loss gets worse with this rate, so the first evaluation is the best."""
    optimizer = {"op": "sgd", "learning_rate": 30.0, "place": "/node:ps"}
    train = {
        "optimizer": optimizer,
        "nan": "warn",
        "epochs": 50,
        "eval": {"every": "2 steps"},
        "early_stopping": {"metric": "loss", "mode": "min", "patience": 3},
        "checkpoint": {
            "to": "kept",
            "every": 3,
            "keep": 1,
            "best": {"metric": "loss", "mode": "min"},
        },
    }
    result = run(build(tmp_path, spec(train=train)), history=tmp_path / "history")
    losses = {
        line["step"]: line["eval"]["loss"]
        for line in lines(tmp_path / "history")
        if "eval" in line
    }
    best = min(losses, key=lambda step: losses[step])
    assert result.steps == best + 6 == max(losses)
    manifest = read_manifest(tmp_path / "kept" / "best")
    assert manifest.progress.step == best
    last, _ = list_checkpoints(tmp_path / "kept")[0]
    assert read_manifest(last).progress.step == result.steps
    assert read_manifest(last).progress.best.value == losses[best]


def test_the_best_evaluation_of_early_stopping_is_kept(tmp_path):
    """No `best` says so: the last evaluation is not the best."""
    stop = {"metric": "loss", "mode": "max", "patience": 30}
    model = spec(train={"early_stopping": stop})
    checkpoints = tmp_path / "checkpoints"
    run(build(tmp_path, model), checkpoint=checkpoints, checkpoint_keep=1)
    best = read_manifest(checkpoints / "best").progress
    assert best.best.step == best.step < 24
    assert len([*checkpoints.glob("step-*")]) == 2


def test_the_checkpoint_with_the_smallest_loss_is_kept(tmp_path):
    """The loss gets worse with this rate. A continued run knows the best one so far."""
    optimizer = {"op": "sgd", "learning_rate": 30.0, "place": "/node:ps"}
    train = {"optimizer": optimizer, "nan": "warn", "eval": {"every": "2 steps"}}
    built = build(tmp_path, spec(train=train))
    kept, history = tmp_path / "kept", tmp_path / "history"
    options = {"checkpoint": kept, "checkpoint_keep": 1, "history": history}
    first = run(built, steps=6, **options)
    result = run(built, steps=12, resume=kept, **options)
    losses = {e["step"]: e["eval"]["loss"] for e in lines(history) if "eval" in e}
    assert [*losses] == [2, 4, 6, 8, 10, 12]
    best = min(losses, key=lambda step: losses[step])
    assert best < 6
    path = kept / f"step-{best:06d}"
    assert [each for each, _ in list_checkpoints(kept)] == [kept / "step-000012", path]
    assert Path(result.best) == Path(first.best) == path == (kept / "best").resolve()
    found = read_manifest(kept / "step-000012").progress.best
    assert (found.value, found.step, found.since) == (losses[best], best, 6 - best // 2)


def test_a_run_in_another_folder_knows_the_best_checkpoint_of_the_continued_one(
    tmp_path, capsys
):
    """The loss gets worse with this rate."""
    optimizer = {"op": "sgd", "learning_rate": 30.0, "place": "/node:ps"}
    train = {"optimizer": optimizer, "nan": "warn", "eval": {"every": "2 steps"}}
    built = build(tmp_path, spec(train=train))
    old, new, last = tmp_path / "old", tmp_path / "new", tmp_path / "last"
    best = Path(run(built, steps=6, checkpoint=old).best)
    result = run(built, steps=8, checkpoint=new, resume=old / "step-000006")
    assert Path(result.best) == best == (old / "best").resolve()
    metrics, place = best_lines(Path(result.best))
    assert f"(step {read_manifest(best).progress.step})" in metrics
    assert place.endswith(f"is in {old / 'best'}")
    assert not (new / "best").exists()
    assert "the best evaluation" not in capsys.readouterr().err
    # The best one is not in the folder of the run that this one continues.
    assert run(built, steps=10, checkpoint=last, resume=new).best is None
    assert (
        f"warning: the checkpoint with the best evaluation so far is not in '{new}': loss "
    ) in capsys.readouterr().err


def test_a_folder_in_which_the_best_one_cannot_be_linked_is_refused(whole, tmp_path):
    built, kept = whole[0] / "b", tmp_path / "kept"
    (kept / "best").mkdir(parents=True)
    for start in (
        lambda: check_launch(built, Options(checkpoint=kept)),
        lambda: run(built, checkpoint=kept),
    ):
        with pytest.raises(
            CheckpointError, match="best' is not a link to a checkpoint"
        ):
            start()
    assert [each.name for each in kept.iterdir()] == ["best"]


def test_breaks_do_not_bring_early_stopping_forward(tmp_path, capsys):
    """The evaluations at the ends of parts of the run do not count."""
    optimizer = {"op": "sgd", "learning_rate": 30.0, "place": "/node:ps"}
    train = {
        "optimizer": optimizer,
        "nan": "warn",
        "eval": {"every": "2 steps"},
        "early_stopping": {"metric": "loss", "mode": "min", "patience": 3},
    }
    built = build(tmp_path, spec(train=train))
    whole = run(built).steps
    assert 8 <= whole < 24
    ended = f"train.early_stopping ends the run after step {whole}: the best loss was"
    said = capsys.readouterr().err.splitlines()
    assert [each for each in said if each.startswith(ended)]  # it is no warning
    options = {"checkpoint": tmp_path / "kept"}
    for steps in (3, 5, 7):
        assert run(built, steps=steps, **options).steps == steps
        options["resume"] = tmp_path / "kept"
    assert run(built, **options).steps == whole
    options["checkpoint"] = None
    assert run(built, **options).steps == whole  # also if it had ended there


def test_an_interval_of_time_is_that_of_one_clock(tmp_path, capsys):
    """Between two checkpoints the interval passes on the control node."""
    run(
        # The only evaluation is at the end, where one is saved too.
        build(tmp_path, spec(train={"epochs": 100, "eval": {"every": "600 steps"}})),
        checkpoint=tmp_path / "kept",
        checkpoint_every="0.2s",
        checkpoint_keep=1000,
        history=tmp_path / "history",
    )
    last = json.loads((tmp_path / "history").read_text().splitlines()[-1])
    saved = [m.progress.step for _, m in list_checkpoints(tmp_path / "kept")]
    assert saved[0] == last["step"] == 600  # at the end, without an interval
    # The first interval begins before the first step. The time of a step may be known
    # late, so only the whole is compared.
    assert (len(saved) - 2) * 0.2 <= last["seconds"]


def test_a_run_that_keeps_nothing_more_says_so(whole, tmp_path, capsys):
    folder, _ = whole
    start = folder / "checkpoints" / "step-000022"
    run(folder / "b", resume=start)
    assert "warning: this run saves no checkpoints" in capsys.readouterr().err
    run(folder / "b", resume=start, checkpoint=tmp_path / "checkpoints")
    assert "saves no checkpoints" not in capsys.readouterr().err


def test_the_checkpoints_of_another_run_are_not_overwritten(whole, tmp_path):
    folder, _ = whole
    kept = tmp_path / "checkpoints"
    step = kept / "step-000022"
    shutil.copytree(folder / "checkpoints" / "step-000022", step)
    with pytest.raises(
        CheckpointError, match="contains the checkpoints of another run"
    ):
        run(folder / "b", checkpoint=kept, steps=1)
    assert [each.name for each in kept.iterdir()] == ["step-000022"]
    for start in (kept, step):
        run(folder / "b", checkpoint=kept, resume=start)
        shutil.rmtree(kept / "step-000024")


def test_parameters_that_start_later_are_corrected_by_their_own_updates(
    whole, tmp_path
):
    """Adam divides by `1 - beta ** updates`: a new parameter would else be moved by
    three times the learning rate at once."""
    folder, _ = whole
    model = spec(train={"optimizer": dict(OPTIMIZER)})
    del model["train"]["clip"]
    ops = model["graph"][0]["ops"]
    ops[3]["name"], ops[4]["in"] = "out", "out"
    checkpoints = tmp_path / "checkpoints"
    options = {"checkpoint": checkpoints, "checkpoint_every": 1, "partial": True}
    other = build(tmp_path, model)
    run(other, resume=folder / "checkpoints" / "step-000020", steps=21, **options)
    manifest = read_manifest(checkpoints / "step-000021")
    updates = {name: each.updates for name, each in manifest.parameters.items()}
    assert (updates["h.w"], updates["out.w"], updates["out.b"]) == (21, 1, 1)
    bias = load_block(checkpoints / "step-000021", "out.b")
    np.testing.assert_allclose(abs(bias), OPTIMIZER["learning_rate"], rtol=1e-3)
    del options["partial"]
    run(other, resume=checkpoints, steps=22, **options)
    manifest = read_manifest(checkpoints / "step-000022")
    assert manifest.parameters["out.w"].updates == 2


OPTIMIZER = {"op": "adam", "learning_rate": 0.01, "place": "/node:ps"}


def load_block(checkpoint, name):
    """Return a block of a checkpoint by its name."""
    for file in checkpoint.glob("*.safetensors"):
        blocks = load_file(file)
        if name in blocks:
            return blocks[name]
    raise AssertionError(name)


def edit_program(folder, old, new):
    """Change the program of the first node, as if another compiler had written it."""
    plan = read_plan(folder)
    file = folder / plan.nodes[0].program
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    files = plan.files | {plan.nodes[0].program: sha256(file.read_bytes())}
    plan = with_digest(structs.replace(plan, files=files))
    (folder / "plan.json").write_text(to_json(plan))


def test_another_module_is_said_but_no_other_comment(tmp_path, capsys):
    module = tmp_path / "scaled.py"
    text = "def scale(params, state, h, *, rng, training):\n    return 2.0 * h, state\n"
    module.write_text(text)
    model = spec()
    ops = model["graph"][0]["ops"]
    scaled = {"op": "call", "fn": "scaled:scale", "in": "h", "out": "float32[batch, 8]"}
    ops.insert(1, {"name": "s", **scaled})
    ops[2]["in"] = "s"
    checkpoints = tmp_path / "checkpoints"
    run(build(tmp_path, model), checkpoint=checkpoints, checkpoint_every=1, steps=1)
    module.write_text(f"# A comment\n\n{text}")
    again = build(tmp_path, model)
    edit_program(again, "import jax\n", "import jax  # a comment\n\n")
    run(again, resume=checkpoints, steps=2)
    assert ", with the same bits as an" in capsys.readouterr().err
    module.write_text(text.replace("2.0", "5.0"))
    run(build(tmp_path, model), resume=checkpoints, steps=2)
    reason = (
        "the same bits as an uninterrupted run: another program, module or optimizer"
    )
    assert f"not necessarily with {reason}\n" in capsys.readouterr().err
    optimizer = model["train"]["optimizer"]
    optimizer["learning_rate"] = 0.125
    model["train"]["epochs"] += 1
    run(build(tmp_path, model), resume=checkpoints, steps=2)
    before = "exponential: {init: 0.05, rate: 0.9, steps: 3}"
    changed = f"(optimizer.dense.learning_rate is 0.125, was {before})"
    assert f"not necessarily with {reason} {changed}\n" in capsys.readouterr().err


def test_the_same_rows_in_a_file_of_another_kind_continue_a_run(
    whole, tmp_path, capsys
):
    folder, _ = whole
    rows = np.load(folder / "rows.npz")
    columns = {f"x{i}": rows["x"][:, i] for i in range(6)} | {"y": rows["y"]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    model = spec()
    for data in model["data"].values():
        data["source"] = "parquet:rows.parquet"
        data["columns"] = {"x": [f"x{i}" for i in range(6)], "y": "y"}
    start = folder / "checkpoints" / "step-000020"
    run(build(tmp_path, model), resume=start)
    assert "continuing after step 20" in capsys.readouterr().err


def test_rows_that_were_not_all_compared_are_said(whole, tmp_path, capsys):
    (tmp_path / "drawn.py").write_text(MAP_STYLE)
    model = spec()
    for data in model["data"].values():
        data["source"] = "python:drawn:rows"
    checkpoints = tmp_path / "checkpoints"
    run(build(tmp_path, model), checkpoint=checkpoints, checkpoint_every=1, steps=1)
    run(tmp_path / "b", resume=checkpoints, steps=2)
    assert "only some rows of data.train were compared" in capsys.readouterr().err
    for folder, warning in (
        (checkpoints, "only some rows"),
        (whole[0] / "checkpoints", ""),
    ):
        _, manifest = list_checkpoints(folder)[0]
        assert uncompared_rows(manifest.train).startswith(warning)
        assert bool(uncompared_rows(manifest.train)) is bool(warning)


MAP_STYLE = """
import numpy as np


class Rows:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return {"x": np.full(6, index, np.float32), "y": np.int32(index % 2)}


def rows():
    return Rows()
"""


def test_a_full_disk_for_the_history_stops_the_run_and_saves(tmp_path, capsys):
    checkpoints = tmp_path / "checkpoints"
    with pytest.raises(RunError, match="cannot write the history to /dev/full"):
        run(build(tmp_path), checkpoint=checkpoints, history=Path("/dev/full"))
    assert "No space left on device; the run stops" in capsys.readouterr().err
    (_, manifest), *_ = list_checkpoints(checkpoints)
    assert 1 <= manifest.progress.step < 24


def test_parameters_that_are_not_finite_are_no_checkpoint(tmp_path, capsys):
    """The loss of the step is finite: its update is what diverges."""
    optimizer = {"op": "sgd", "learning_rate": 1e38, "place": "/node:ps"}
    model = spec(train={"optimizer": optimizer})
    del model["train"]["clip"]
    checkpoints = tmp_path / "checkpoints"
    with pytest.raises(RunError):
        run(build(tmp_path, model), checkpoint=checkpoints, checkpoint_every=1)
    assert "is not finite; the run continues" in capsys.readouterr().err
    for _, manifest in list_checkpoints(checkpoints):
        assert manifest.progress.step == 1


def test_an_evaluation_of_another_model_is_not_reported(whole, tmp_path):
    folder, _ = whole
    model = spec(train={"metrics": ["loss"]})
    del model["data"]["eval"]
    result = run(
        build(tmp_path, model), resume=folder / "checkpoints" / "step-000008", steps=9
    )
    assert result.eval == {}


def test_a_history_that_is_no_file_is_not_cut(whole):
    folder, _ = whole
    start = folder / "checkpoints" / "step-000022"
    assert run(folder / "b", resume=start, history=Path("/dev/null")).steps == 24


def test_other_options_of_the_rows_may_change_bits(whole, tmp_path, capsys):
    """Digests of all rows are of the cells, before a vocabulary gives them numbers."""
    words = ["a"] * 64 + ["a", "b"] * 500 + ["a"] * 64
    rows = "".join(f"{i % 7},{word},{i % 2}\n" for i, word in enumerate(words))
    (tmp_path / "rows.csv").write_text("v,w,y\n" + rows)
    model = spec()
    model["inputs"] = {"v": "float32[batch]", "w": "int32[batch]", "y": "int32[batch]"}
    csv = {"vocabulary": {"w": ["a", "b"]}}
    model["data"] = {"train": {"source": "csv:rows.csv", "batch": 4, "csv": csv}}
    ops = model["graph"][0]["ops"]
    ops[:4] = [{"name": "o", "op": "embedding", "in": "w", "size": [2, 1]}]
    checkpoints = tmp_path / "checkpoints"
    run(build(tmp_path, model), checkpoint=checkpoints, checkpoint_every=1, steps=1)
    csv["vocabulary"]["w"] = ["a", "b", "c"]
    run(build(tmp_path, model), resume=checkpoints, steps=2)
    assert "only some rows of data.train were compared" in capsys.readouterr().err
