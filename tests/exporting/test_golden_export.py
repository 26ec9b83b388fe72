"""Whole exported models, as a person reads them."""

import os
from pathlib import Path

import pytest
from safetensors.numpy import save_file
from support.spec_models import SPECS, initial_parameters

import placer

GOLDEN = Path(__file__).parents[1] / "golden" / "export"
UPDATE = "PLACER_UPDATE_GOLDEN"
FILES = ("model.py", "ops/__init__.py", "prepare.py", "postprocess.py")


@pytest.mark.parametrize("spec", ["digits"])
def test_exported_files_are_those_that_were_reviewed(spec, tmp_path):
    plan = placer.compile(SPECS / f"{spec}.yaml", tmp_path / "build")
    save_file(initial_parameters(plan), tmp_path / "params")
    placer.export(tmp_path / "build", tmp_path / "model", params=tmp_path / "params")
    for name in FILES:
        content = (tmp_path / "model" / name).read_bytes()
        if os.environ.get(UPDATE):
            (GOLDEN / spec / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / spec / name).write_bytes(content)
        # If the change is intended: UPDATE=1 writes the files, for review.
        assert content == (GOLDEN / spec / name).read_bytes(), name
