"""Whole programs, as a person reads them."""

import os
from pathlib import Path

import pytest

from placer.compiler.driver import compile as compile_model
from placer.system.resources import find_file

GOLDEN = Path(__file__).parents[2] / "golden"
SPECS = {
    "digits": "a model on two workers and two servers",
    "wide_deep": "a heter worker between two workers and a server",
    "transformer_pipeline": "a pipeline of two stages",
    "cnn_gpus": "data parallel over the devices of one node",
    "digits_geo": "workers that exchange differences with servers from time to time",
    "digits_backup": "servers that wait for the first workers only",
    "digits_without_server": "asynchronous all-reduce",
}
UPDATE = "PLACER_UPDATE_GOLDEN"


@pytest.mark.parametrize("spec", SPECS)
def test_programs_are_those_that_were_reviewed(spec, tmp_path):
    plan = compile_model(find_file(f"specs/{spec}.yaml"), tmp_path)
    programs = dict.fromkeys(node.program for node in plan.nodes)
    expected = GOLDEN / spec
    if os.environ.get(UPDATE):
        for path in programs:
            (expected / path).parent.mkdir(parents=True, exist_ok=True)
            (expected / path).write_bytes((tmp_path / path).read_bytes())
    paths = {path.relative_to(expected).as_posix() for path in expected.rglob("*.py")}
    assert paths == set(programs)
    for path in programs:
        text = (tmp_path / path).read_text(encoding="utf-8")
        # If the change is intended: UPDATE=1 writes the files, for review.
        assert text == (expected / path).read_text(encoding="utf-8"), path
