"""What the launcher hears of a job of Slurm, from its files and from squeue."""

from __future__ import annotations

import pytest

from placer.engines.engine import NodeEnded
from placer.engines.slurm import following, watch
from placer.engines.slurm.job import SlurmJob
from placer.errors import RunError


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "job-7"
    folder.mkdir()
    return SlurmJob("7", folder, ("worker:0", "ps:0"))


def test_the_job_ends_before_its_folder_is_removed(job, monkeypatch):
    """The batch script writes to the folder, and fails if that is not there."""
    for name in ("worker-0", "ps-0"):
        (job.folder / f"{name}.ended").write_text("0 n1\n")
    monkeypatch.setattr(
        following.time, "sleep", lambda _: (job.folder / "ended").touch()
    )
    events = watch(job)
    assert next(events) == NodeEnded("worker:0", 0, host="n1")
    assert (job.folder / "ended").exists()


def test_a_failure_is_told_at_once(job):
    (job.folder / "worker-0.ended").write_text("137 n1\n")
    (job.folder / "ps-0.ended").write_text("0 n1\n")
    assert next(watch(job)) == NodeEnded("worker:0", -9, host="n1")
    assert not (job.folder / "ended").exists()


def test_a_job_of_which_nothing_is_heard_is_named(job, monkeypatch):
    def ask(job):
        raise RunError("squeue failed: no controller")

    monkeypatch.setattr(SlurmJob, "ask", ask)
    monkeypatch.setattr(following, "SILENT", -1.0)
    with pytest.raises(RunError, match=r"Slurm job 7 cannot be .*\n.*: scancel 7"):
        list(watch(job))
