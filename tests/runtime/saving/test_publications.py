"""A run publishes parameters and changed rows; a reader has those of the checkpoint of the step."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
from support.marks import slow_but
from support.published import TABLES, Follower, content_of
from support.published import build_published as build

import placer
from placer.errors import CheckpointError, RunError
from placer.publishing import folder as publishing_folder
from placer.publishing.folder import list_publications, publishing_locked
from placer.publishing.served import load
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving import publications, published_files

pytestmark = pytest.mark.usefixtures("threads_watched")

ALL = Options(checkpoint_every=1, checkpoint_keep=999)
OFTEN = {"every": "0.001s", "keep": 999}
NOT_SAVED = {"checkpoint_every": None, "checkpoint_keep": None}


def run(build, folder, **options):
    """Run a build that publishes to a folder; return what a reader has read meanwhile."""
    follower = Follower(folder)
    given = {"publish": folder, **options}
    run_in_threads(build, replace(ALL, **given), watch=follower)
    return follower


@pytest.mark.parametrize(
    ("table", "at_once", "workers"),
    slow_but(
        [("counted", True, 2), ("counted", False, 2), ("full", False, 1)],
        product(TABLES, (True, False), (1, 2)),
    ),
)
def test_a_reader_has_the_parameters_and_rows_of_each_step(
    tmp_path, table, at_once, workers
):
    """A checkpoint of the same step reads the tables once, for both."""
    built = build(tmp_path, table=table, workers=workers)
    kept = tmp_path / "kept"
    saves = {"checkpoint": kept} if at_once else {"checkpoint_every": None}
    saves |= {} if at_once else {"checkpoint_keep": None}
    follower = run(built, tmp_path / "serving", **saves)
    if not at_once:
        other = build(tmp_path, "other", table=table, workers=workers)
        run(other, tmp_path / "again", checkpoint=kept)
    follower.check(kept)
    assert follower.warnings == []
    assert follower.kinds[0] == (True, 1)
    # A publication may wait for the one before, but the end of the run is published.
    assert follower.kinds[-1][1] == 12
    if table == "counted" and at_once:
        assert sum(event.removed for event in follower.events) > 0


def test_asynchronous_workers_publish(tmp_path):
    built = build(tmp_path, table="counted", workers=2, update="async")
    follower = run(built, tmp_path / "serving", checkpoint=tmp_path / "kept")
    last = max(follower.states)
    step, params, tables = follower.states[last]
    wanted, rows = content_of(tmp_path / "kept" / f"step-{step:06d}")
    assert tables == rows
    assert all((params[name] == array).all() for name, array in wanted.items())


def test_a_model_without_tables_publishes_its_parameters(tmp_path):
    build(tmp_path)
    spec = json.loads((tmp_path / "b.yaml").read_text())
    spec["inputs"] = {"x": "float32[batch, 4]", "y": "int32[batch]"}
    spec["graph"][1] = {"name": "flat", "op": "flatten", "in": "x"}
    del spec["graph"][0]
    (tmp_path / "dense.yaml").write_text(json.dumps(spec))
    placer.compile(tmp_path / "dense.yaml", built := tmp_path / "dense")
    follower = run(built, tmp_path / "serving", checkpoint=tmp_path / "kept")
    follower.check(tmp_path / "kept")


def test_a_resumed_run_goes_on_with_a_delta_of_the_same_step(tmp_path):
    built, kept = build(tmp_path, table="counted"), tmp_path / "kept"
    serving = tmp_path / "serving"
    first = run(built, serving, checkpoint=kept, steps=5)
    assert first.kinds[-1] == (False, 5)
    follower = run(built, serving, checkpoint=kept, resume=kept)
    assert follower.kinds[0][0] is False
    follower.check(kept)
    # Nothing is left to train, and the step is published.
    assert run(built, serving, checkpoint=kept, resume=kept).events == []


def test_a_run_that_goes_back_begins_with_a_base(tmp_path):
    built, kept = build(tmp_path, table="counted"), tmp_path / "kept"
    serving = tmp_path / "serving"
    run(built, serving, checkpoint=kept, steps=5)
    number = list_publications(serving)[-1].number
    resumed = {"resume": kept / "step-000003", "checkpoint": tmp_path / "again"}
    follower = run(built, serving, **resumed)
    assert follower.events[0].is_base
    assert follower.events[0].number == number + 1
    state = follower.served.state
    assert (state.step, state.epoch) == (12, 3)
    follower.check(tmp_path / "again")


def test_nothing_left_to_train_is_published_once(tmp_path):
    built, kept = build(tmp_path), tmp_path / "kept"
    run(built, tmp_path / "first", checkpoint=kept)
    follower = run(built, tmp_path / "second", checkpoint=kept, resume=kept)
    assert follower.kinds == [(True, 12)]


def test_shrunk_tables_are_a_base(tmp_path):
    built, kept = build(tmp_path, table="counted"), tmp_path / "kept"
    run(built, tmp_path / "serving", checkpoint=kept, steps=5)
    options = {"checkpoint": tmp_path / "again", "resume": kept, "shrink": True}
    follower = run(built, tmp_path / "serving", **options)
    assert follower.events[0].is_base
    follower.check(tmp_path / "again")


def test_bases_follow_the_setting_and_old_ones_go(tmp_path):
    built = build(tmp_path, publish={"every": "epoch", "base": 2, "keep": 1})
    follower = run(built, tmp_path / "serving", checkpoint=tmp_path / "kept")
    assert follower.kinds == [(True, 4), (False, 8), (True, 12)]
    listed = list_publications(tmp_path / "serving")
    assert [(each.number, each.is_base) for each in listed] == [(3, True)]


def test_nodes_without_the_folder_send_their_files(tmp_path, monkeypatch):
    share = publications.share_folder

    def hidden(execution, folder, what):
        name, sees = share(execution, folder, what)
        return name, sees and execution.is_control

    monkeypatch.setattr(publications, "share_folder", hidden)
    built = build(tmp_path, table="counted", workers=2)
    follower = run(built, tmp_path / "serving", checkpoint=tmp_path / "kept")
    follower.check(tmp_path / "kept")


def test_a_publication_that_cannot_be_written_is_followed_by_a_base(
    tmp_path, monkeypatch
):
    built = build(tmp_path, table="counted", publish={"every": "epoch"})
    finish, calls = published_files.RowsFile.finish, []

    def fails_once(file):
        calls.append(file)
        if len(calls) == 3:  # in the second publication
            raise OSError(28, "No space left on device")
        return finish(file)

    monkeypatch.setattr(published_files.RowsFile, "finish", fails_once)
    kept = tmp_path / "kept"
    follower = run(built, tmp_path / "serving", checkpoint=kept)
    (warning,) = follower.warnings
    assert "the publication of step 8 could not be written: ps:" in warning
    assert "No space left on device; the run continues" in warning
    assert follower.kinds == [(True, 4), (True, 12)]
    follower.check(kept)
    assert not [*(tmp_path / "serving").glob(".*")]


def test_a_run_whose_last_publication_failed_fails(tmp_path, monkeypatch):
    built = build(tmp_path, publish={"every": "epoch"})

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publications, "commit", fails)
    with pytest.raises(RunError, match="of step 12 could not be written: No space"):
        run(built, tmp_path / "serving", checkpoint=tmp_path / "kept")


def test_values_that_are_not_finite_are_not_published(tmp_path):
    built = build(tmp_path, optimizer={"op": "sgd", "learning_rate": 1e38})
    with pytest.raises(RunError, match="not finite"):
        run(built, tmp_path / "serving", checkpoint=tmp_path / "kept")
    assert all(each.step < 3 for each in list_publications(tmp_path / "serving"))


def test_a_folder_has_one_writer_and_one_model(tmp_path):
    built, serving = build(tmp_path), tmp_path / "serving"
    with (
        publishing_locked(serving),
        pytest.raises(CheckpointError, match="another run"),
    ):
        run(built, serving, checkpoint=tmp_path / "kept", steps=1)
    run(built, serving, checkpoint=tmp_path / "kept", steps=1)
    (tmp_path / "other").mkdir()
    spec = json.loads((tmp_path / "b.yaml").read_text())
    spec["graph"][3]["size"] = 4
    spec["name"] = "published"
    (tmp_path / "c.yaml").write_text(json.dumps(spec))
    placer.compile(tmp_path / "c.yaml", tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"another model: \w+.py differs"):
        run(tmp_path / "c", serving, checkpoint=tmp_path / "other", steps=1)


def test_incomplete_publications_of_a_killed_run_are_removed(tmp_path):
    left = publishing_folder.temporary_folder(tmp_path, 3, "ab12")
    left.mkdir()
    with publishing_locked(tmp_path):
        assert not left.exists()


def test_a_run_without_publications_meets_as_often_as_before(tmp_path, monkeypatch):
    build(tmp_path)
    spec = json.loads((tmp_path / "b.yaml").read_text())
    del spec["train"]["publish"]
    (tmp_path / "plain.yaml").write_text(json.dumps(spec))
    placer.compile(tmp_path / "plain.yaml", plain := tmp_path / "plain")
    monkeypatch.delattr(publications, "barrier")
    run_in_threads(plain, replace(ALL, checkpoint=tmp_path / "kept"))


def test_publications_follow_an_interval_of_time_and_the_end(tmp_path):
    """One that is due while files are written waits for a later step."""
    built = build(tmp_path, table="counted", publish=OFTEN, epochs=10)
    follower = run(built, tmp_path / "serving", **NOT_SAVED)
    assert len(follower.events) > 1
    assert follower.kinds[-1][1] == 40
    run(built, tmp_path / "again", checkpoint=tmp_path / "kept")
    follower.check(tmp_path / "kept")


def test_a_run_that_is_stopped_publishes(tmp_path):
    class Stops(placer.Callback):
        def on_step(self, record):
            return placer.STOP if record.step == 5 else None

    built, serving = build(tmp_path, publish={"every": "1h"}), tmp_path / "serving"
    options = {"in_process": True, "publish": serving, "callbacks": [Stops()]}
    result = placer.launch(built, **options)
    assert result.published == str(serving / "base-000001")
    assert load(serving).state.step == result.steps < 12


def test_a_recorded_order_is_replayed_without_publications(tmp_path, monkeypatch):
    more = {"table": "counted", "workers": 2, "update": "async", "epochs": 25}
    built = build(tmp_path, **more, publish=OFTEN)
    order, again = tmp_path / "order", tmp_path / "again"
    first = run(built, tmp_path / "a", **NOT_SAVED, record_order=order)
    assert len(first.events) > 1
    monkeypatch.setattr(publications.Publications, "is_time", lambda self: False)
    options = {"replay_order": order, "checkpoint": again, "checkpoint_every": "1h"}
    second = run(built, tmp_path / "b", **options)
    assert len(second.events) == 1
    (saved,) = again.glob("step-*")
    rows = content_of(saved)[1]
    assert [f.states[max(f.states)][2] for f in (first, second)] == [rows, rows]
