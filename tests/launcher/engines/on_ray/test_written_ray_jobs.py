"""The files of a job on Ray, as a person reads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import placer
from placer.channel.keys import RunKey, write_key
from placer.compiler.driver import compile as compile_model
from placer.errors import PlacerError
from placer.launcher.engine_job import OnEngine, request_job, write_job
from placer.runtime.control.options import Options

GOLDEN = Path(__file__).parents[3] / "golden" / "ray"
UPDATE = "PLACER_UPDATE_GOLDEN"
SECRET = bytes(range(32))
CASES = {
    "digits": ({}, None, Options(steps=100)),
    "wide_deep": (
        {
            "address": "10.0.0.1:6379",
            "cpus": "4",
            "memory": "8GiB",
            "strategy": "SPREAD",
            "timeout": "600",
            "grows": "true",
        },
        Path("/data/ada's rows"),
        Options(checkpoint=Path("/scratch/wide deep")),
    ),
}


@pytest.mark.parametrize("spec", CASES)
def test_the_script_is_the_one_that_was_reviewed(spec, tmp_path):
    given, data, chosen = CASES[spec]
    build, folder, key = tmp_path / "build", tmp_path / "job", tmp_path / "run.key"
    write_key(key, RunKey(SECRET))
    emulate = {"emulate": False} if spec == "wide_deep" else None
    plan = compile_model(f"specs/{spec}.yaml", build, overrides=emulate)
    on = OnEngine("ray", given, data)
    options = Options(steps=chosen.steps, checkpoint=chosen.checkpoint, key=key)
    asked = request_job(build, plan, options, on)
    paths = write_job(folder, tmp_path / "build", asked, on)
    text = (folder / "run.py").read_text()
    expected = GOLDEN / spec / "run.py"
    if os.environ.get(UPDATE):
        expected.parent.mkdir(parents=True, exist_ok=True)
        expected.write_text(text)
    # If the change is intended: UPDATE=1 writes the files, for review.
    assert text == expected.read_text()
    compile(text, "run.py", "exec")
    for path in plan.files:
        assert (folder / "build" / path).read_bytes() == (build / path).read_bytes()
    before = {path: path.read_bytes() for path in paths}
    assert not any(SECRET.hex().encode() in content for content in before.values())
    assert {
        path: path.read_bytes()
        for path in write_job(folder, tmp_path / "build", asked, on)
    } == before


@pytest.mark.parametrize("name", ["cpus", "timeout"])
def test_an_option_that_is_zero_is_an_error(name, tmp_path):
    build = tmp_path / "build"
    plan = compile_model("specs/digits.yaml", build)
    on = OnEngine("ray", {name: 0})
    with pytest.raises(PlacerError, match=f"'{name}' must be at least 1"):
        write_job(tmp_path / "job", build, request_job(build, plan, Options(), on), on)


def test_an_empty_address_is_an_error(tmp_path):
    build = tmp_path / "build"
    plan = compile_model("specs/digits.yaml", build)
    on = OnEngine("ray", {"address": " "})
    with pytest.raises(PlacerError, match="'address' is empty"):
        write_job(tmp_path / "job", build, request_job(build, plan, Options(), on), on)


def test_without_ray_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "placer.launcher.engines.ray.engine.find_spec", lambda name: None
    )
    build = tmp_path / "build"
    compile_model("specs/digits.yaml", build)
    with pytest.raises(PlacerError, match="not installed") as caught:
        placer.launch(build, on="ray", logs=tmp_path / "logs")
    assert caught.value.hint is not None
    assert "pip install '.[ray]' in a clone of placer" in caught.value.hint
