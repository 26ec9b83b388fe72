"""`placer info`: what it reports of the machine that runs the tests."""

from __future__ import annotations

import json
import os
from importlib.metadata import version

import msgspec
import pytest
from support.real_runs import run_command

from placer.command.cli import main
from placer.report import machine as machine_module
from placer.report.machine import inspect_machine
from placer.report.machine_text import machine_lines


def test_the_json_has_versions_devices_and_working_transports(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["info", "--json"])
    assert ended.value.code == 0
    machine = json.loads(capsys.readouterr().out)
    assert machine["versions"]["jaxlib"] == version("jaxlib")
    assert machine["devices"][0]["platform"] in ("cpu", "gpu")
    assert machine["transports"] == {"shared": None, "tcp": None}
    assert machine["cores"]["usable"] == len(os.sched_getaffinity(0))
    assert 0 < machine["memory"]["available"] <= machine["memory"]["total"]
    assert machine["optional"]["flax"] == version("flax")


def test_another_program_named_placer_is_a_conflict(tmp_path, monkeypatch):
    info = tmp_path / "other_placer-0.0.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: other-placer\nVersion: 0.0.7\n")
    (info / "RECORD").write_text("placer/__init__.py,,\n")
    (tmp_path / "placer").mkdir()
    (tmp_path / "placer/__init__.py").touch()  # newer Pythons list existing files only
    assert machine_module._conflict() is None
    monkeypatch.syspath_prepend(str(tmp_path))
    machine = inspect_machine()
    (line,) = (s for s in machine_lines(machine) if s.startswith("conflict"))
    assert "the distribution 'other-placer' 0.0.7 has a package `placer`" in line
    assert "pip uninstall other-placer; then in a clone of placer: pip install" in line


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(machine_module, "OPTIONAL", ("flax", "optax"))
    monkeypatch.setattr(machine_module, "_version", lambda package: None)
    *_, flax, optax = machine_lines(inspect_machine())
    assert flax.endswith(
        "flax is not installed: pip install '.[flax]' in a clone of placer"
    )
    assert optax.endswith(
        "optax is not installed: pip install '.[optax]' in a clone of placer"
    )


def test_the_text_says_the_same_for_people(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path))
    (tmp_path / "xla-1-2").mkdir()
    (tmp_path / "xla-1-2" / "a-cache").write_bytes(bytes(5000))
    with pytest.raises(SystemExit):
        main(["info"])
    out = capsys.readouterr().out
    assert f"jax {version('jax')}" in out
    assert "\ntransports     shared: works, used by default\n" in out
    assert f"\ncaches         {tmp_path}\n" in out
    assert "compiled programs 5.0 kB" in out


def test_a_cache_is_empty_or_has_a_problem(tmp_path, monkeypatch):
    def shown(folder):
        monkeypatch.setenv("PLACER_CACHE", str(folder))
        machine = msgspec.structs.replace(inspected, cache=machine_module._cache())
        lines = [line.strip() for line in machine_lines(machine)]
        at = next(n for n, line in enumerate(lines) if line.endswith(str(folder)))
        return lines[at + 1]

    inspected = inspect_machine()
    new = tmp_path / "new"
    assert shown(new) == "empty"
    assert not new.exists()
    new.mkdir()
    assert shown(new) == "empty"
    new.chmod(0o777)
    assert shown(new) == f"not used: other users can write to it: chmod go-w {new}"
    file = tmp_path / "file"
    file.touch(0o600)
    assert shown(file) == "not used: Not a directory"


def test_a_choice_of_transport_that_does_not_exist_is_reported(monkeypatch):
    monkeypatch.setenv("PLACER_TRANSPORT", "shard")
    machine = inspect_machine()
    assert machine.transport is None
    assert "PLACER_TRANSPORT is 'shard', which is not a transport" in str(
        machine.transport_error
    )


def test_devices_that_jax_cannot_start_are_reported(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "metal")
    done = run_command("info")
    assert done.status == 0
    (line,) = [s for s in done.out.splitlines() if s.startswith("devices")]
    assert "JAX sees no devices: " in line
    assert line.endswith("; JAX_PLATFORMS is metal")
    assert "gpu            not usable: " in done.out


@pytest.mark.parametrize(
    ("driver", "version_", "extra"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Thu Feb 22\n",
            "535.161.08",
            "cuda12",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release"
            " Build\nGCC version:  gcc version 12.3.0\n",
            "580.95.05",
            "cuda13",
        ),
    ],
)
def test_a_gpu_that_jax_cannot_use_has_a_hint(
    driver, version_, extra, tmp_path, monkeypatch
):
    (tmp_path / "version").write_text(driver)
    monkeypatch.setattr(machine_module, "_DRIVER", tmp_path / "version")
    gpu = machine_module._gpu(())
    assert (gpu.usable, gpu.driver) == (False, version_)
    if gpu.plugin is None:
        assert gpu.hint == (
            f"JAX is installed without GPU support: pip install -U 'jax[{extra}]'"
        )
