"""What a run with `--restarts` takes from a checkpoint that the user names, after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpointed import build
from support.faulty_runs import Fault, Faulty, Run, make_faulty, small_spec
from support.saved_rows import assert_same_tables
from support.sparse_specs import write_sparse_spec

import placer
from placer.checkpoint.folder import list_checkpoints

FORGETS = {"forget": {"unseen_steps": 1, "every": 1000}}


@pytest.mark.slow
def test_a_run_that_fails_before_its_first_checkpoint_goes_back_to_the_named_one(
    small, whole
):
    """Its folder also has newer checkpoints, of the run that it continues."""
    small.run(steps=6)
    kept = small.files / "checkpoints"
    small.plant([Fault("worker:1", "step 5, call 2: receive")])
    run = small.go_on(resume=kept / "step-000004")
    (restart,) = run.result.restarts
    assert restart.step == 4
    assert (run.params, run.history) == (whole.params, whole.history)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3])
def test_a_part_is_taken_from_a_checkpoint_of_another_model_once(small, tmp_path, step):
    """The last layer has another name there."""
    model = small_spec()
    (scope,) = model["graph"]
    output, logit = scope["ops"][2:4]
    output["name"] = logit["in"] = "other"
    placer.launch(
        build(tmp_path, model, "another"),
        steps=4,
        checkpoint=tmp_path / "start",
        checkpoint_every=1,
    )
    options = {"resume": tmp_path / "start/step-000002", "partial": True, "steps": 10}
    options["checkpoint_every"] = 2
    whole = small.run(**options)
    run = small.run(Fault("ps:1", f"step {2 + step}, call 2"), **options)
    assert len(run.result.restarts) == 1
    assert (run.params, run.history) == (whole.params, whole.history)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory) -> Faulty:
    folder = tmp_path_factory.mktemp("clicks")
    spec = write_sparse_spec(folder, user=FORGETS | {"admit": {"count": 1}})
    placer.compile(spec, folder / "build")
    return make_faulty(folder / "build")


@pytest.fixture(scope="module")
def start(clicks, tmp_path_factory) -> Path:
    """A checkpoint of a run that was left alone."""
    run = clicks.run(steps=4)
    target = tmp_path_factory.mktemp("start") / "kept"
    (clicks.files / "checkpoints").rename(target)
    assert run.result is not None
    return target


@pytest.mark.slow
@pytest.mark.parametrize("option", ["resume and shrink", "init_params"])
@pytest.mark.parametrize("step", [1, 3])
def test_rows_are_taken_from_a_named_checkpoint_once(
    clicks, start, tmp_path, option, step
):
    """Also if a node is killed before the first checkpoint of the run, or after some."""
    options = {"resume": start, "shrink": True, "checkpoint_every": 2}
    first = 5
    if option == "init_params":
        options = {"init_params": start, "checkpoint_every": 2}
        first = 1

    def last(run: Run) -> Path:
        assert run.result is not None
        kept = clicks.files / "checkpoints"
        (newest, _), *_ = list_checkpoints(kept)
        return newest.rename(tmp_path / f"{len(run.restarts)} restarts")

    last_step = first + 6
    whole = clicks.run(**options, steps=last_step)
    expected = last(whole)
    killed = f"step {first + step - 1}, call 2"
    run = clicks.run(Fault("ps:1", killed), **options, steps=last_step)
    found = last(run)
    assert len(run.restarts) == 1
    assert (run.params, run.history) == (whole.params, whole.history)
    assert_same_tables(found, expected, rtol=0, atol=0)
