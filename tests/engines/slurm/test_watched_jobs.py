"""What the launcher hears of a job of Slurm, from its files and from squeue."""

from __future__ import annotations

import pytest

from placer.engines import slurm
from placer.engines.engine import NodeEnded
from placer.errors import RunError


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "job-7"
    folder.mkdir()
    return slurm.SlurmJob("7", folder, ("worker:0", "ps:0"))


def test_the_job_ends_before_its_folder_is_removed(job, monkeypatch):
    """The batch script writes to the folder, and fails if that is not there."""
    for name in ("worker-0", "ps-0"):
        (job.folder / f"{name}.ended").write_text("0 n1\n")
    monkeypatch.setattr(slurm.time, "sleep", lambda _: (job.folder / "ended").touch())
    events = slurm.watch(job)
    assert next(events) == NodeEnded("worker:0", 0, host="n1")
    assert (job.folder / "ended").exists()


def test_a_failure_is_told_at_once(job):
    (job.folder / "worker-0.ended").write_text("137 n1\n")
    (job.folder / "ps-0.ended").write_text("0 n1\n")
    assert next(slurm.watch(job)) == NodeEnded("worker:0", -9, host="n1")
    assert not (job.folder / "ended").exists()


def test_a_job_of_which_nothing_is_heard_is_named(job, monkeypatch):
    def run(command, folder=None):
        raise RunError("squeue failed: no controller")

    monkeypatch.setattr(slurm, "_run", run)
    monkeypatch.setattr(slurm, "SILENT", -1.0)
    with pytest.raises(RunError, match=r"Slurm job 7 cannot be .*\n.*: scancel 7"):
        list(slurm.watch(job))
