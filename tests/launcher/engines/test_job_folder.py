"""The files of a job in a folder."""

from __future__ import annotations

import pytest

from placer.errors import PlacerError
from placer.launcher.engines.engine import JobFile
from placer.launcher.job_folder import LIST, remove_job_files, write_job_files

JOB = {
    "job.sh": JobFile("four"),
    "build/plan.json": JobFile(b"four"),
    "build/worker-3/program.py": JobFile("four"),
    "run.key": JobFile("secret", private=True),
}
SMALLER = {name: JobFile("two") for name in ("job.sh", "build/plan.json", "run.key")}


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): p.read_text() for p in files}


def test_a_job_takes_the_place_of_an_earlier_one(tmp_path):
    folder = tmp_path / "job"
    write_job_files(folder, JOB, tmp_path / "build")
    assert (folder / "run.key").stat().st_mode & 0o777 == 0o600
    (folder / "job-7").mkdir()
    (folder / "job-7" / "worker-0.log").write_text("kept")
    write_job_files(folder, SMALLER, tmp_path / "build")
    found = content(folder)
    assert found.pop(LIST).split() == [*SMALLER]
    assert found == {"job-7/worker-0.log": "kept", **dict.fromkeys(SMALLER, "two")}
    assert not (folder / "build" / "worker-3").exists()


def test_a_job_is_removed_without_the_files_of_others(tmp_path):
    write_job_files(tmp_path / "job", JOB, tmp_path / "build")
    (tmp_path / "job" / "notes.txt").write_text("mine")
    remove_job_files(tmp_path / "job")
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["job.sh", "build/notes.txt"])
def test_files_of_somebody_else_are_kept(tmp_path, name):
    (tmp_path / "job" / "build").mkdir(parents=True)
    (tmp_path / "job" / name).write_text("mine")
    with pytest.raises(PlacerError, match="exists and does not belong to a job"):
        write_job_files(tmp_path / "job", JOB, tmp_path / "build")
    assert content(tmp_path / "job") == {name: "mine"}


def test_a_job_is_not_written_into_its_build(tmp_path):
    for folder in (tmp_path / "build", tmp_path / "build" / "job"):
        with pytest.raises(PlacerError, match="it is inside the build folder"):
            write_job_files(folder, JOB, tmp_path / "build")
    assert not (tmp_path / "build").exists()
