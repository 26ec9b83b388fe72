"""A checkpoint that an older placer saved continues: see golden/checkpoint/README.md."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.checkpointed import check_equal
from support.saved_rows import assert_same_tables

import placer
from placer.checkpoint.reading import Checkpoint
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving import start_facts
from placer.runtime.saving.same_model import OTHER_PLACEMENT

STORED = Path(__file__).parents[2] / "golden" / "checkpoint"
LAST = "step-000012"


@pytest.fixture
def continued(tmp_path, capsys):
    """Return a function that continues on some nodes; it returns the last checkpoint, and
    what was printed."""

    def run(resume=STORED / "step-000008", **nodes):
        placer.compile(STORED / "model.yaml", tmp_path / "b", nodes=nodes)
        options = Options(resume=resume, checkpoint=tmp_path / "c")
        run_in_threads(tmp_path / "b", options)
        return tmp_path / "c" / LAST, capsys.readouterr().err

    return run


def test_on_the_same_placement_it_has_the_bits_of_its_run(continued):
    checkpoint, said = continued()
    for server in ("ps-0", "ps-1"):
        file = f"{server}.safetensors"
        check_equal(checkpoint / file, STORED / LAST / file)
    assert_same_tables(checkpoint, STORED / LAST, rtol=0)
    assert "it was saved by an older placer, so programs cannot be compared" in said
    assert OTHER_PLACEMENT not in said
    assert "another program" not in said


def test_programs_of_an_older_compiler_are_not_called_other_programs(
    continued, tmp_path
):
    shutil.copytree(STORED / "step-000008", tmp_path / "old")
    manifest = tmp_path / "old" / "manifest.json"
    text, changed = re.subn(
        '"computation":\\s*"', r"\g<0>trees:", manifest.read_text(encoding="utf-8")
    )
    assert changed == 1
    manifest.write_text(text, encoding="utf-8")
    _, said = continued(tmp_path / "old")
    assert "it was saved by an older placer, so programs cannot be compared" in said
    assert "another program" not in said


def test_on_another_placement_it_has_them_up_to_rounding(continued):
    checkpoint, said = continued(worker=1, ps=3)
    assert f"an uninterrupted run: {OTHER_PLACEMENT}\n" in said
    ours, theirs = Checkpoint(checkpoint), Checkpoint(STORED / LAST)
    for name in ("h.w", "h.b"):
        first, second = (
            np.frombuffer(each.read_whole(name), np.float32) for each in (ours, theirs)
        )
        assert_allclose(first, second, rtol=1e-5)
    assert_same_tables(checkpoint, STORED / LAST, rtol=1e-5)


def test_a_schedule_has_the_digest_of_older_checkpoints(tmp_path, monkeypatch):
    rate = {"linear": {"init": 0.5, "end": 0.0, "steps": 9}}
    keys = dict.fromkeys(
        ("train.optimizer.0.learning_rate", "train.optimizer.1.learning_rate"), rate
    )
    placer.compile(STORED / "model.yaml", tmp_path, overrides=keys)
    monkeypatch.setattr(start_facts, "sha256", bytes.decode)
    digested = start_facts._computation_digest(read_plan(tmp_path), tmp_path)
    in_order = '"learning_rate":{"linear":{"end":0.0,"init":0.5,"steps":9}}'
    tables = 3  # of two servers, and the sparse one
    assert digested.count(in_order) == digested.count('"linear":') == tables
