"""Jobs of a real Slurm with `--restarts`, which lose processes, tasks and machines."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.engines.contract import (
    STEPS,
    assert_bits_of_a_local_run,
    bits_options,
    send_interrupt,
    stop_and_save,
)
from support.faulty_runs import Fault, Faulty, make_faulty
from support.real_runs import (
    TIMEOUT,
    compile_small,
    placer_command,
    process_environment,
    run_command,
    running_command,
)
from support.slurm import (
    end_machine,
    jobs,
    machine_of,
    needs_slurm,
    running_machine,
    scheduling,
    slurm,
    wait_for_end,
)

pytestmark = [needs_slurm, pytest.mark.slow]
KILLED = Fault("worker:0", "step 3, call 1")
LOST = Fault("ps:0", "step 9, call 1", to=("guard",))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with (
        slurm(tmp_path_factory.mktemp("slurm") / "slurm") as environment,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        yield environment


@pytest.fixture(scope="module")
def machines(cluster):
    """Machines that were started again, until the end of the cluster."""
    with ExitStack() as started:
        yield started


@dataclass
class Small:
    """A small build with planted faults.

    Attributes:
        plain: the same build without faults.
        folder: the folder of the files.
    """

    faulty: Faulty
    plain: Path
    folder: Path

    def words(self, *options: object, restarts: int = 2) -> list[object]:
        checkpoints = [
            f"--checkpoint={self.folder / 'checkpoints'}",
            "--checkpoint-every=1",
        ]
        words = [*bits_options(self.folder), *checkpoints, f"--restarts={restarts}"]
        return ["launch", self.faulty.build, "--on", "slurm", *words, *options]

    @contextmanager
    def launched(
        self, *faults: Fault, options: Sequence[object] = (), restarts: int = 2
    ):
        self.faulty.prepare(faults)
        words = self.words("--json", "--logs", self.job, *options, restarts=restarts)
        with running_command(placer_command(*words)) as run:
            yield run

    def wait_for_fault(self) -> None:
        until = time.monotonic() + TIMEOUT
        while not (self.faulty.folder / "done-0").exists():
            assert time.monotonic() < until
            time.sleep(0.02)

    @property
    def job(self) -> Path:
        return self.folder / "job"

    @property
    def starts(self) -> int:
        """The number of starts of the job."""
        return len([each for each in self.job.glob("job-*") if each.is_dir()])

    def check(self, ended, starts: int = 2) -> None:
        """Check that a run has the bits of one without faults on this machine."""
        assert ended.status == 0, ended.err
        assert_bits_of_a_local_run(self.plain, self.folder)
        assert self.starts == starts


@pytest.fixture
def small(tmp_path, cluster):
    build = compile_small(tmp_path)
    plain = tmp_path / "plain"
    shutil.copytree(build, plain)
    with scheduling(cluster):
        yield Small(make_faulty(build), plain, tmp_path)
    wait_for_end(cluster)


def test_a_killed_process_and_a_lost_task_leave_the_bits_of_a_run_without(small):
    """The process comes back in its task. For the task, Slurm starts the job again."""
    with small.launched(KILLED, LOST) as run:
        ended = run.wait(2 * TIMEOUT)
    small.check(ended)
    restarts = [each["what"] for each in json.loads(ended.out)["restarts"]]
    assert restarts == [
        "worker:0 was killed by SIGKILL",
        "ps:0 was killed by SIGKILL",
    ]
    assert ended.err.count("slurm| Slurm starts job") == 1
    assert "recovering" in ended.err


def test_a_job_by_hand_starts_again(small, cluster):
    small.faulty.prepare([LOST])
    written = run_command(*small.words("--write", small.job))
    subprocess.run(
        ["sbatch", "job.sh"], cwd=small.job, env=process_environment(), check=True
    )
    wait_for_end(cluster, TIMEOUT)
    small.check(written)
    (log,) = small.job.glob("job-*-1/worker-0.log")
    assert f"{STEPS} steps" in log.read_text()


@pytest.mark.parametrize("node", ["worker:0", "ps:0"])
def test_a_machine_that_is_lost_is_replaced(node, small, cluster, machines):
    """Nothing on it reports an end. The batch script runs on the machine of worker:0."""
    with small.launched(Fault(node, "step 9, call 1", "freeze")) as run:
        small.wait_for_fault()
        machine = machine_of(0 if node == "worker:0" else 1, cluster)
        end_machine(machine, cluster)
        ended = run.wait(2 * TIMEOUT)
    machines.enter_context(running_machine(machine, cluster))
    small.check(ended)
    assert "and starts it again" in ended.err


def test_a_preempted_job_starts_again(small, cluster):
    with small.launched(Fault("ps:0", "step 9, call 1", "freeze")) as run:
        small.wait_for_fault()
        machine = machine_of(1, cluster)
        words = ["--partition=urgent", "--exclusive", f"--nodelist={machine}"]
        words += ["--output=/dev/null", "--wrap=sleep 1"]
        subprocess.run(["sbatch", *words], check=True)
        ended = run.wait(2 * TIMEOUT)
    small.check(ended)
    assert "DUE TO PREEMPTION" in ended.err


def test_a_failure_that_ends_the_run_does_not_start_the_job_again(small):
    raises = Fault("ps:0", "state connecting", "raise wrong shapes")
    with small.launched(raises) as run:
        ended = run.wait(2 * TIMEOUT)
    assert ended.status == 1
    assert "wrong shapes" in ended.last_message
    assert small.starts == 1


def test_a_task_that_is_lost_again_and_again_ends_the_run(small):
    always = Fault("ps:0", "step 1, call 1", to=("guard",), always=True)
    with small.launched(always, restarts=1) as run:
        ended = run.wait(3 * TIMEOUT)
    assert ended.status == 1
    assert "ps:0 failed 2 times in a row before the first" in ended.last_message
    assert small.starts == 3


@pytest.mark.parametrize("status", [130, 143])
def test_a_job_that_a_person_ends_saves_and_does_not_start_again(
    status, small, cluster
):
    def end(run):
        if status == 130:
            send_interrupt(run)
            return
        number = jobs(cluster)[0].partition("+")[0]
        subprocess.run(["scancel", number], check=True)

    def launch(*options):
        return small.launched(options=options)

    stop_and_save(launch, small.plain, small.folder, end, status)
    assert small.starts == 1
