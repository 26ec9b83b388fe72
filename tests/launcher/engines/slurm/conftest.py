"""A small job of Slurm, and commands in place of Slurm's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from support.slurm import slurm_options

from placer.channel.keys import RunKey
from placer.launcher.engines.engine import JobRequest, Needs
from placer.launcher.engines.slurm import asking, following, write
from placer.launcher.engines.slurm.job import Answer, SlurmJob
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
def restarts() -> int:
    """The value of --restarts of the small job."""
    return 0


@pytest.fixture
def written(small: JobRequest, restarts: int, tmp_path: Path) -> Path:
    """The folder of a job that is to be submitted."""
    folder, run_id = tmp_path / "job", "abc" if restarts else ""
    request = replace(small, restarts=restarts, run_id=run_id)
    write_job_files(folder, write(request, slurm_options()), tmp_path / "build")
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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the waits for the files of a job."""
    monkeypatch.setattr(following, "POLL", 0.001)
    monkeypatch.setattr(following, "END_GRACE", 0.05)
    monkeypatch.setattr(following, "EXPLAINED", 0.05)
    monkeypatch.setattr(asking, "END_LIMIT", 0.01)  # for a question that stays open


@pytest.fixture
def job(tmp_path: Path) -> SlurmJob:
    folder = tmp_path / "job-7"
    folder.mkdir()
    return SlurmJob("7", folder, ("worker:0", "ps:0"))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns what sets the answers of squeue; the last one holds."""
    answers: list[Answer | Exception] = [Answer("RUNNING", "None")]

    def ask(job: SlurmJob) -> Answer:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(SlurmJob, "ask", ask)
    monkeypatch.setattr(SlurmJob, "ask_closely", ask)

    def says(*given: Answer | Exception) -> None:
        answers[:] = given

    return says
