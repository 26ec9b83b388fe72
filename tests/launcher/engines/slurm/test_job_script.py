"""What the batch script does on the first machine of a job."""

from __future__ import annotations

import os
import subprocess
from typing import Final

import pytest

from placer.launcher.engines.slurm.engine import digest_of
from placer.runtime.control.events import Start, write_event

SRUN = 'printf "%s|" "$@" >"$PLACER_JOB_FOLDER/srun"; env >"$PLACER_JOB_FOLDER/env"'


SCONTROL = """\
case "$*" in
  *"show node"*) echo NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 ;;
  *"show job 7") printf 'JobId=7 %s\\n\\n' "JobState=${STATE:-RUNNING}" JobState=RUNNING ;;
  "requeue 7") [[ -z ${REFUSES-} ]] || { echo "$REFUSES" >&2; exit 1; }; touch asked ;;
esac
"""


@pytest.fixture
def run_script(written, install):
    """Returns what runs job.sh as Slurm does, with srun as a script."""
    install("scontrol", SCONTROL)

    def run(*words, srun=SRUN, script="job.sh", **variables):
        install("srun", srun)
        return subprocess.run(
            ["bash", script, *words],
            cwd=written,
            env={
                **os.environ,
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "n1",
                "SLURM_SUBMIT_DIR": str(written),
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=30,
        )

    return run


def test_a_job_by_hand_makes_its_folder(written, run_script):
    done = run_script()
    assert (done.returncode, done.stderr) == (0, "")
    assert (written / "job-7" / "ended").read_text() == "0\n"


def test_each_group_gets_all_options(written, run_script):
    """srun does not pass the options of a group on to the next one, and takes one CPU for
    each task, with its share of memory, if it is not told their number."""
    run_script()
    first, second = (written / "job-7" / "srun").read_text().split("|:|")
    assert first + "|" == second
    assert "--cpus-per-task=2|" in first
    assert f"--chdir={written}|" in first


def test_the_environment_of_another_job_is_not_passed_on(written, run_script):
    inherited = {"PLACER_NODE": "ps:9", "SLURM_MEM_PER_NODE": "5"}
    run_script(**inherited)
    seen = (written / "job-7" / "env").read_text()
    assert not [name for name in inherited if f"{name}=" in seen]
    assert "PLACER_SLURM_ADDRESSES=n1=10.0.0.1\n" in seen


def test_a_job_of_the_launcher_uses_the_folder_that_it_has_made(written, run_script):
    (written / "job-7").mkdir()
    assert run_script(digest_of(written)).returncode == 0
    assert (written / "job-7" / "ended").read_text() == "0\n"


def test_a_job_that_nobody_follows_fails(written, run_script):
    text = (written / "job.sh").read_text()
    assert "i < 600" in text
    (written / "soon.sh").write_text(text.replace("i < 600", "i < 1"))
    done = run_script(digest_of(written), script="soon.sh")
    assert done.returncode == 1
    assert "error: no launcher follows this job" in done.stderr
    assert not (written / "job-7").exists()


def test_files_that_another_job_has_replaced_are_not_run(written, run_script):
    (written / "job-7").mkdir()
    digest = digest_of(written)
    (written / "node.sh").write_text("something else")
    done = run_script(digest)
    assert done.returncode == 1
    assert "another job has replaced the files" in done.stderr
    assert not (written / "job-7" / "srun").exists()


def test_a_job_by_hand_does_not_run_another_build(written, run_script):
    (written / "build" / "plan.json").write_text("{ }")
    done = run_script()
    assert done.returncode == 1
    assert "has the build of another job" in done.stderr
    assert not (written / "job-7").exists()


def test_a_job_does_not_run_twice(written, run_script):
    assert run_script().returncode == 0
    again = run_script(SLURM_RESTART_COUNT="1")
    assert again.returncode == 1
    assert "Slurm has started this job again" in again.stderr


def test_a_job_that_was_submitted_elsewhere_leaves_nothing_there(
    run_script, written, tmp_path
):
    here = tmp_path / "here"
    here.mkdir()
    done = run_script(SLURM_SUBMIT_DIR=str(here))
    assert done.returncode == 1
    assert "submit the job in its folder" in done.stderr
    assert not [*here.iterdir()]


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_job_by_hand_that_fails_names_the_folder_of_the_logs(
    by_hand, written, run_script
):
    """The launcher names them itself, and shows the last lines of the output."""
    if not by_hand:
        (written / "job-7").mkdir()
    digest = () if by_hand else (digest_of(written),)
    done = run_script(*digest, srun="echo no room >&2; exit 3")
    assert done.returncode == 3
    where = f"the logs of the nodes are in {written}/job-7\n" if by_hand else ""
    assert done.stderr == f"no room\n{where}"
    assert (written / "job-7" / "ended").read_text() == "3\n"


def test_a_folder_that_was_removed_is_no_failure(written, run_script):
    done = run_script(srun='rm -r "$PLACER_JOB_FOLDER"')
    assert done.returncode == 0


class TestWithRestarts:
    """Scripts of a job with `--restarts 2`, of the nodes worker:0 and ps:0."""

    LOST: Final = {"worker": 143, "ps": 137}

    @pytest.fixture
    def restarts(self):
        return 2

    @pytest.fixture
    def start(self, run_script, written, install):
        """Returns a function that runs job.sh with nodes that end with statuses. It returns
        whether the script has asked Slurm to start the job again."""

        install("squeue", "true")  # there are no tasks of the last start

        def start(ends, *, count=0, trains=True, **variables):
            srun = [
                f'echo "{status} n1" >"$PLACER_JOB_FOLDER/{kind}-0.ended"'
                for kind, status in ends.items()
            ]
            if trains:
                line = write_event(Start(1, 9, 9)).decode().rstrip()
                srun.append(f"echo '{line}' >\"$PLACER_JOB_FOLDER/worker-0.jsonl\"")
            (written / "asked").unlink(missing_ok=True)
            variables |= {"SLURM_RESTART_COUNT": str(count)} if count else {}
            done = run_script(srun="\n".join([*srun, SRUN, "exit 9"]), **variables)
            assert done.returncode == 9
            folder = written / (f"job-7-{count}" if count else "job-7")
            is_asked = (written / "asked").exists()
            assert is_asked != (folder / "ended").exists()
            return is_asked, done.stderr

        return start

    @pytest.mark.parametrize(
        ("ends", "state", "again"),
        [
            (LOST, "RUNNING", True),
            ({"worker": 143}, "RUNNING", True),  # the task of ps:0 was killed
            ({}, "RUNNING", True),
            ({"worker": 137, "ps": 0}, "RUNNING", True),
            (LOST, "COMPLETING", False),  # somebody has cancelled it
            ({"worker": 143, "ps": 143}, "RUNNING", False),  # a signal to all nodes
            ({"worker": 1, "ps": 143}, "RUNNING", False),
            ({"ps": 127}, "RUNNING", False),
            ({"worker": 0, "ps": 137}, "RUNNING", False),  # there is a result
        ],
    )
    def test_a_lost_task_starts_the_job_again(self, ends, state, again, start, written):
        is_asked, said = start(ends, STATE=state)
        assert is_asked == again
        assert ("Slurm starts this job again" in said) == again
        assert (written / "job-7" / "requeued").exists() == again

    def test_a_job_that_was_started_again_has_its_own_folder(
        self, start, run_script, written
    ):
        start(self.LOST)
        assert start(self.LOST, count=1)[0]
        runs = {
            line
            for folder in ("job-7", "job-7-1")
            for line in (written / folder / "env").read_text().splitlines()
            if line.startswith("PLACER_RUN_ID")
        }
        assert runs == {"PLACER_RUN_ID=abc-7"}
        # The launcher has not created the folder, because it may have ended.
        done = run_script(digest_of(written), SLURM_RESTART_COUNT="2")
        assert done.returncode == 0
        assert (written / "job-7-2" / "ended").read_text() == "0\n"

    def test_tasks_of_the_last_start_are_ended(self, start, install, written):
        old = "[[ $* != *--jobs=7,8* || -e ended ]] || printf ' 7.batch\\n 8.0\\n'"
        install("squeue", old)
        install("scancel", 'echo "$@" >ended')
        start(self.LOST, count=1, SLURM_JOB_ID_HET_GROUP_1="8")
        assert (written / "ended").read_text() == "8.0\n"

    def test_starts_in_a_row_that_do_not_train_are_limited(self, start):
        counts = range(7)
        trained = [count == 2 for count in counts]
        asked = [start(self.LOST, count=i, trains=trained[i]) for i in counts]
        assert [each for each, _ in asked] == [True] * 5 + [False, False]
        assert "3 starts of the job in a row have lost a task" in asked[5][1]

    def test_a_refusal_of_slurm_ends_the_job(self, start):
        refusal = "Requested operation is presently disabled"
        is_asked, said = start(self.LOST, REFUSES=refusal)
        assert not is_asked
        assert refusal in said
