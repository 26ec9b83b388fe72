"""A run that continues from a checkpoint is the run that was not interrupted."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.checkpointed import build, check_equal, lines, run, spec

from placer.checkpoint.folder import list_checkpoints
from placer.checkpoint.manifest import read_manifest
from placer.errors import CheckpointError, PlacerError


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


def test_nothing_is_left_to_do(whole):
    folder, _ = whole
    with pytest.raises(
        CheckpointError, match="of step 24, and the run ends after step"
    ):
        run(folder / "b", resume=folder / "checkpoints")


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
    assert "ps-1.safetensors: chunk 0 does not have its checksum" in err
    assert f"continuing after step 6 from {kept}/step-000006, with the same bits" in err
    with pytest.raises(CheckpointError, match="does not have its checksum"):
        run(folder / "b", resume=kept / "step-000008")
    (kept / "step-000006" / "ps-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint that can be read"):
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
    optimizer = dict(spec()["train"]["optimizer"], op="momentum")
    model = spec(train={"optimizer": optimizer})
    with pytest.raises(CheckpointError, match=r"h.w \(adam, not momentum\)"):
        run(build(tmp_path, model), resume=start)
    model = spec()
    model["graph"][0]["ops"][0]["size"] = 9
    with pytest.raises(CheckpointError, match=r"h.w is float32\[6, 8\], the model has"):
        run(build(tmp_path, model), resume=start, partial=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 2}, "batch is 2, and was 4"),
        ({"shuffle": False}, "shuffle is false, and was true"),
        ({"seed": 5}, "seed is 5, and was 0"),
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
    with pytest.raises(PlacerError, match="has no line of step 8"):
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


def test_breaks_do_not_bring_early_stopping_forward(tmp_path):
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
    options = {"checkpoint": tmp_path / "kept"}
    for steps in (3, 5, 7):
        assert run(built, steps=steps, **options).steps == steps
        options["resume"] = tmp_path / "kept"
    assert run(built, **options).steps == whole


def test_an_interval_of_time_is_that_of_one_clock(tmp_path, capsys):
    """Between two checkpoints the interval passes on the control node."""
    run(
        build(tmp_path, spec(train={"epochs": 100})),
        checkpoint=tmp_path / "kept",
        checkpoint_every="0.2s",
        checkpoint_keep=1000,
        history=tmp_path / "history",
    )
    seconds = {
        line["step"]: line["seconds"]
        for line in map(json.loads, (tmp_path / "history").read_text().splitlines())
    }
    saved = [m.progress.step for _, m in list_checkpoints(tmp_path / "kept")][::-1]
    assert saved[-1] == 600
    times = [seconds[step] for step in saved[:-1]]
    assert all(later - earlier > 0.1 for earlier, later in pairwise(times)), times
