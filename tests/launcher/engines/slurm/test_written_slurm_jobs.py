"""The files of a job of Slurm, as a person reads them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from placer.channel.keys import RunKey, write_key
from placer.compiler.driver import compile as compile_model
from placer.errors import PlacerError
from placer.launcher.engine_job import OnEngine, request_job, write_job
from placer.runtime.control.options import Options

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"
UPDATE = "PLACER_UPDATE_GOLDEN"
OPTIONS = {"python": "/opt/placer/bin/python", "partition": "long", "time": "1-0:00:00"}
CASES = {
    "digits": (OPTIONS, Options(steps=100)),
    "wide_deep": (
        {
            "python": "python3",
            "cpus": "4",
            "memory": "8GiB",
            "port": "21000",
            "setup": "module load cuda",
            "sbatch": "-C a100 --comment='a run' --exclusive",
        },
        Options(checkpoint=Path("/scratch/ada/wide deep"), restarts=3),
    ),
}


def request(tmp_path, spec, options):
    build = tmp_path / "build"
    emulate = {"emulate": False} if spec == "wide_deep" else None
    plan = compile_model(f"specs/{spec}.yaml", build, overrides=emulate)
    key = tmp_path / "run.key"
    write_key(key, RunKey(bytes(range(32))))
    given, chosen = options
    on = OnEngine("slurm", given, Path("/data/rows"))
    asked = request_job(build, plan, replace(chosen, key=key), on)
    assert len(asked.run_id) == (16 if chosen.restarts else 0)
    return replace(asked, run_id="0123456789abcdef"), on


@pytest.mark.parametrize("spec", CASES)
def test_the_scripts_are_those_that_were_reviewed(spec, tmp_path):
    asked, on = request(tmp_path, spec, CASES[spec])
    folder = tmp_path / "job"
    write_job(folder, tmp_path / "build", asked, on)
    expected = GOLDEN / spec
    for name in ("job.sh", "node.sh"):
        plan = sha256(asked.files["plan.json"]).hexdigest()
        text = (folder / name).read_text().replace(plan, "SHA256")
        if os.environ.get(UPDATE):
            expected.mkdir(parents=True, exist_ok=True)
            (expected / name).write_text(text)
        # If the change is intended: PLACER_UPDATE_GOLDEN=1 writes the files, for review.
        assert text == (expected / name).read_text(), name
        subprocess.run(["bash", "-n", folder / name], check=True)
    assert (folder / "run.key").read_text() == bytes(range(32)).hex() + "\n"
    assert (folder / "run.key").stat().st_mode & 0o777 == 0o600
    for path in asked.plan.files:
        content = (tmp_path / "build" / path).read_bytes()
        assert (folder / "build" / path).read_bytes() == content
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    write_job(folder, tmp_path / "build", asked, on)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_python_that_there_is_not_is_named_before_the_job_waits(tmp_path):
    asked, on = request(tmp_path, "digits", ({"python": "/no/python"}, Options()))
    write_job(tmp_path / "job", tmp_path / "build", asked, on)
    with pytest.raises(PlacerError, match="there is no Python '/no/python'"):
        on.engine.submit(tmp_path / "job", asked, on.options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is no folder '/data/rows' for --data"),
        (
            {"save_params": Path("/no/p.safetensors")},
            "no folder '/no' for --save-params",
        ),
        (
            {"init_params": Path("/no/checkpoint")},
            "no file '/no/checkpoint' for --init-",
        ),
        ({"resume": Path("/no/saved")}, "no folder '/no/saved' for --resume"),
        ({"checkpoint": Path("/no/new")}, "no folder '/no' for --checkpoint"),
    ],
)
def test_what_there_is_not_is_named_before_the_job_waits(options, message, tmp_path):
    build = tmp_path / "build"
    plan = compile_model("specs/digits.yaml", build)
    on = OnEngine("slurm", {}, None if options else Path("/data/rows"))
    asked = request_job(build, plan, Options(**options), on)
    with pytest.raises(PlacerError, match=message):
        on.engine.submit(tmp_path / "job", asked, on.options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus": "0"}, "'cpus' must be at least 1"),
        ({"port": "0"}, "'port' must be from 1 to"),
        ({"port": "65535"}, "'port' must be from 1 to"),
        ({"sbatch": "--comment='a"}, "not a list of options: no closing quotation"),
    ],
)
def test_values_that_no_job_can_have_are_errors(options, message, tmp_path):
    asked, on = request(tmp_path, "digits", (options, Options()))
    with pytest.raises(PlacerError, match=message):
        write_job(tmp_path / "job", tmp_path / "build", asked, on)
