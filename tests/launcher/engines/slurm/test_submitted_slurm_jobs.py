"""How a job is given to sbatch, and what follows from its answer."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from support.slurm import slurm_options as options

from placer.errors import RunError
from placer.launcher.engines.slurm import commands, submit
from placer.launcher.engines.slurm.engine import digest_of
from placer.launcher.engines.slurm.job import Answer, SlurmJob
from placer.launcher.engines.slurm.sbatch_options import set_options


def test_sbatch_gets_the_digest_of_the_files_and_the_launcher_opens_the_folder(
    small, written, install
):
    install("sbatch", 'printf \'%s\\n\' "$PWD" "$@" >asked; echo 7')
    job = submit(written, small, options())
    asked = (written / "asked").read_text().splitlines()
    assert asked == [str(written), "--parsable", "job.sh", digest_of(written)]
    assert job.folder == written / "job-7"
    assert job.folder.is_dir()
    assert job.cancel_command == "scancel 7"


def test_sbatch_sees_no_options_of_another_job(small, written, install, monkeypatch):
    kept = {
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_ACCOUNT": "mine",
    }
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    others = [
        "SBATCH_PARTITION",
        "SBATCH_QOS",
        "SBATCH_WAIT",
        "SLURM_CLUSTERS",
        "SLURM_MEM_PER_NODE",
    ]
    for name in others:
        monkeypatch.setenv(name, "other")
    install("sbatch", "env >environment; echo 7")
    submit(written, small, options(partition="long", sbatch="-M east -q high"))
    seen = dict(
        line.partition("=")[::2]
        for line in (written / "environment").read_text().splitlines()
    )
    assert seen["SBATCH_ACCOUNT"] == "mine"
    assert seen["SLURM_CONF"] == "/etc/slurm.conf"
    assert not {*others} & {*seen}


def test_an_interrupt_of_the_terminal_does_not_end_a_command(install, tmp_path):
    """scancel is what Ctrl-C starts."""
    install("scancel", f"awk '{{print $6}}' /proc/$$/stat >{tmp_path}/session")
    SlurmJob("7", tmp_path, ()).cancel()
    assert int((tmp_path / "session").read_text()) != os.getsid(0)


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ("-p debug", "partition"),
        ("-pdebug", "partition"),
        ("-Hp debug", "partition"),
        ("-C a100 -q high", "qos"),
        ("--qos high", "qos"),
        ("--part=debug", "partition"),
        ("--comment='a b' -A mine", "account"),
        ("-M east", "clusters"),
        ("-t 5", "time"),
        ("--reservation=r", "reservation"),
        ("--time-min=5 -C p -N 1", ""),
    ],
)
def test_an_option_of_sbatch_replaces_its_default(given, replaced):
    assert set_options(given) == ({replaced} if replaced else set())


def test_the_number_of_a_job_is_on_the_last_line_with_its_cluster(
    small, written, install
):
    install("sbatch", "echo welcome to cluster 5; echo '9;east'")
    install("squeue", 'echo CLUSTER: east; echo "RUNNING|None|1:58"')
    job = submit(written, small, options())
    assert (job.number, job.cancel_command) == ("9", "scancel --clusters=east 9")
    assert job.ask() == Answer("RUNNING", "None", "1:58")


def test_a_folder_of_another_job_with_this_number_ends_the_job(
    small, written, install, tmp_path
):
    (written / "job-7").mkdir()
    install("sbatch", "echo 7")
    install("scancel", f'echo "$@" >{tmp_path}/cancelled')
    with pytest.raises(RunError, match=r"already exists.*\n.*--logs DIR"):
        submit(written, small, options())
    assert (tmp_path / "cancelled").read_text() == "7\n"


def test_a_job_that_cannot_be_cancelled_is_named(small, written, install):
    (written / "job-7").mkdir()
    install("sbatch", "echo 7")
    install("scancel", "exit 1")
    with pytest.raises(RunError, match="end the job with: scancel 7"):
        submit(written, small, options())


def test_a_reason_may_have_any_text(small, written, install):
    install("sbatch", "echo 7")
    install("squeue", 'echo "COMPLETED|None|0:00"; echo "PENDING|a|b, c|INVALID"')
    job = submit(written, small, options())
    assert job.ask() == Answer("PENDING", "a|b, c", "INVALID")


def test_a_job_that_slurm_starts_again_in_part_has_ended(small, written, install):
    install("sbatch", "echo 7")
    install("squeue", 'echo "PENDING|None|0:00"; echo "FAILED|JobLaunchFailure|0:00"')
    job = submit(written, replace(small, restarts=1), options())
    assert job.ask() == Answer("FAILED", "JobLaunchFailure", "0:00")


@pytest.mark.parametrize(
    ("told", "reason"),
    [("PreemptTime=2026-11-28T22:06:15", "Preempted"), ("PreemptTime=None", "None")],
)
def test_a_job_that_is_to_leave_its_machines_is_preempted(
    told, reason, small, written, install
):
    install("sbatch", "echo 7")
    install("squeue", 'echo "RUNNING|None|UNLIMITED"')
    install("scontrol", f"echo JobId=7 PreemptEligibleTime=2026-11-28T22:06:13 {told}")
    answer = submit(written, small, options()).ask_closely()
    assert answer == Answer("RUNNING", reason, "UNLIMITED")


def test_a_refusal_is_shown_in_the_words_of_sbatch(small, written, install):
    said = "Requested node configuration is not available"
    install("sbatch", f"echo 'sbatch: error: {said}' >&2; exit 1")
    with pytest.raises(RunError) as raised:
        submit(written, small, options())
    assert raised.value.message == f"sbatch failed: sbatch: error: {said}"
    assert "--option memory=SIZE, cpus=N" in str(raised.value.hint)
    assert not [each for each in os.listdir(written) if each.startswith("job-")]


@pytest.mark.parametrize(
    ("script", "timeout"),
    [
        ("echo 'sbatch: error: Socket timed out on send/recv' >&2; exit 1", 60.0),
        ("exec sleep 600", 0.1),
    ],
)
def test_a_job_that_slurm_may_have_taken_has_a_hint(
    script, timeout, small, written, install, monkeypatch
):
    monkeypatch.setattr(commands, "TIMEOUT", timeout)
    install("sbatch", script)
    with pytest.raises(RunError) as raised:
        submit(written, small, options())
    assert "if Slurm has accepted the job after all, it fails" in str(raised.value.hint)
    install("squeue", script.replace("sbatch", "squeue"))
    with pytest.raises(RunError) as raised:
        SlurmJob("7", written, ()).ask()
    assert raised.value.hint is None
