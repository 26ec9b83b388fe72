"""A small job of Slurm, and commands in place of Slurm's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from support.slurm import slurm_options

from placer.channel.keys import RunKey
from placer.launcher.engines.engine import JobRequest, Needs
from placer.launcher.engines.slurm import write
from placer.launcher.job_folder import write_job_files
from placer.plan.plan import Plan


@pytest.fixture
def small() -> JobRequest:
    """A run whose build has nothing but a plan."""
    needs = dict.fromkeys(("worker:0", "ps:0"), Needs(1 << 29, 0))
    files = {"plan.json": b"{}"}
    plan = cast(Plan, None)  # which Slurm does not ask
    return JobRequest("small", plan, files, needs, (), None, RunKey(bytes(32)))


@pytest.fixture
def written(small: JobRequest, tmp_path: Path) -> Path:
    """The folder of a job that is to be submitted."""
    folder = tmp_path / "job"
    write_job_files(folder, write(small, slurm_options()), tmp_path / "build")
    return folder


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns what installs a command, in place of one of Slurm with this name."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def install(name: str, script: str) -> None:
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)

    return install
