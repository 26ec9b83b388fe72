"""What the launcher hears of a job of Slurm, from its files and from squeue."""

from __future__ import annotations

import json
import os
import shutil
import threading
from queue import Queue

import pytest

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.launcher.engines.engine import JobNote, NodeEnded, NodeLines
from placer.launcher.engines.slurm import asking, following, notes, watch
from placer.launcher.engines.slurm.job import Answer, SlurmJob
from placer.runtime.control.events import NodeFailure, SignalReceived, write_event

pytestmark = pytest.mark.usefixtures("quick")
SIGNAL = write_event(SignalReceived("worker:0", 15)).rstrip()
CANCELLED = (
    "slurmstepd-n1: error: *** {} ON n1 CANCELLED AT 2026-11-28T20:57:15 {} ***\n"
)


@pytest.fixture
def gives(monkeypatch):
    """Returns what gives the next answer of squeue, and waits until the launcher has it,
    and asks again."""
    answers: Queue[Answer | Exception] = Queue()
    asked = threading.Semaphore(0)

    def ask(job):
        asked.release()
        answer = answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(SlurmJob, "ask", ask)
    monkeypatch.setattr(asking, "ASK", 0.0)

    def gives(answer):
        assert asked.acquire(timeout=10)
        answers.put(answer)
        assert asked.acquire(timeout=10)
        asked.release()  # of the question that is open

    yield gives
    answers.put(Answer(""))


def look(job, events):
    """Look at a job, and assert that nothing is told but what a node has written."""
    with (job.folder / "worker-0.jsonl").open("ab") as file:
        file.write(b"1\n")
    assert next(events) == NodeLines("worker:0", [b"1"])


def end(job, **statuses):
    for name, status in statuses.items():
        (job.folder / f"{name}-0.ended").write_text(f"{status} n1\n")


def failure(job):
    """Return the error with which the watch of a job ends."""
    with pytest.raises(RunError) as raised:
        list(watch(job))
    return str(raised.value)


def test_the_job_ends_before_its_folder_is_removed(job, says, monkeypatch):
    """The batch script writes to the folder, and fails if that is not there."""
    end(job, worker=0, ps=0)
    monkeypatch.setattr(
        following.time, "sleep", lambda _: (job.folder / "ended").touch()
    )
    events = watch(job)
    assert next(events) == NodeEnded("worker:0", 0, host="n1")
    assert (job.folder / "ended").exists()


def test_the_folder_is_changed_before_it_is_listed(job, says):
    """NFS may answer from its cache for a minute otherwise."""
    end(job, worker=1)
    os.utime(job.folder, (1, 1))
    next(watch(job))
    assert job.folder.stat().st_mtime > 1


def test_a_failure_is_told_at_once(job, says):
    end(job, worker=1, ps=0)
    assert next(watch(job)) == NodeEnded("worker:0", 1, host="n1")
    assert not (job.folder / "ended").exists()


def test_a_job_of_which_nothing_is_heard_is_named(job, says, monkeypatch):
    says(RunError("squeue failed: no controller"))
    monkeypatch.setattr(notes, "SILENT", -1.0)
    monkeypatch.setattr(notes, "UNANSWERED", 10.0)
    assert failure(job) == (
        "Slurm job 7 can no longer be followed: squeue failed: no controller\n"
        "  hint: the job keeps running; end it with: scancel 7"
    )


def test_a_job_is_followed_while_slurm_does_not_answer(job, monkeypatch):
    """Its files say all that is needed, and are read while a question is open."""
    answers = threading.Event()

    def ask(job):
        answers.wait()
        return Answer("RUNNING")

    monkeypatch.setattr(SlurmJob, "ask", ask)
    (job.folder / "worker-0.jsonl").write_bytes(b"1\n")
    events = watch(job)
    assert next(events) == NodeLines("worker:0", [b"1"])
    end(job, worker=0, ps=0)
    (job.folder / "ended").write_text("0\n")
    rest = list(events)
    answers.set()
    assert [each.status for each in rest] == [0, 0]


@pytest.mark.parametrize("error", ["", "no controller"])
def test_silence_and_its_end_are_told(error, job, gives, monkeypatch):
    """A command of Slurm may wait for a minute before it fails."""
    events = watch(job)
    look(job, events)
    if error:
        gives(RunError(error))
    monkeypatch.setattr(notes, "UNANSWERED", -1.0)
    why = f": {error}" if error else ""
    assert next(events) == JobNote(f"Slurm does not answer{why}", warns=True)
    look(job, events)
    gives(Answer("RUNNING"))
    monkeypatch.setattr(notes, "UNANSWERED", 1000.0)
    assert next(events) == JobNote("Slurm answers again")


def test_a_job_that_was_cancelled_is_asked_for_at_once(job, install, monkeypatch):
    """One that waits has no nodes whose end is read."""
    asked: Queue[str] = Queue()

    def ask(how):
        def ask(job):
            asked.put(how)
            return Answer("PENDING")

        return ask

    monkeypatch.setattr(SlurmJob, "ask", ask("ask"))
    monkeypatch.setattr(SlurmJob, "ask_closely", ask("ask closely"))
    monkeypatch.setattr(asking, "ASK", 1000.0)
    install("scancel", "true")
    with asking.asking(job) as slurm:
        assert asked.get(timeout=10) == "ask"
        slurm.ask_now()
        assert asked.get(timeout=10) == "ask closely"
        job.cancel()
        assert asked.get(timeout=10) == "ask"


@pytest.mark.parametrize(
    ("answer", "log", "words"),
    [
        (
            Answer("COMPLETING", "TimeLimit"),
            CANCELLED.format("JOB 7", "DUE TO TIME LIMIT"),
            "has state COMPLETING (TimeLimit)",
        ),
        (Answer("RUNNING", "Preempted"), "", "has state RUNNING (Preempted)"),
        (
            Answer("COMPLETING", "None"),
            CANCELLED.format("JOB 7", ""),
            "has state COMPLETING",
        ),
        (Answer("CANCELLED"), "", "has state CANCELLED"),
        (Answer("RUNNING", "None", "1:58"), "", "has state RUNNING, 1:58 left"),
    ],
)
def test_what_slurm_says_of_a_signal_is_told_before_it(answer, log, words, job, says):
    """The signal ends the run, and nothing is shown after it."""
    says(answer)
    job.log.write_text(log)
    (job.folder / "worker-0.jsonl").write_bytes(SIGNAL + b"\n")
    end(job, worker=143, ps=143)
    note, *events = watch(job)
    said = f": {log.strip()}" if log else ""
    assert note == JobNote(f"Slurm job 7 {words}{said}", warns=True)
    assert [each.node for each in events] == ["worker:0", "worker:0", "ps:0"]


@pytest.mark.parametrize("peer", [143, 1])
def test_what_slurm_says_of_a_killed_node_is_told_with_its_end(peer, job, says):
    job.log.write_text(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"
        + CANCELLED.format("STEP 7.0", "")
    )
    end(job, worker=137, ps=peer)
    first, second = watch(job)
    assert (first.node, first.status, second.why) == ("worker:0", -9, "")
    assert first.why.startswith(
        "Slurm job 7 has state RUNNING: slurmstepd: error: Detected 1 oom_kill event in"
        " StepId=7.0. slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT"
    )
    assert (
        " hint: change the resources of each node with --option memory=SIZE, "
        in first.why
    )


def test_slurm_that_says_nothing_of_a_signal_is_not_waited_for(job, says):
    says(RunError("no controller"))
    (job.folder / "worker-0.jsonl").write_bytes(SIGNAL + b"\n")
    events = watch(job)
    assert next(events) == JobNote("Slurm job 7 is ending", warns=True)
    assert next(events) == NodeLines("worker:0", [SIGNAL])


def test_signals_that_follow_a_failure_need_no_reason(job, says, monkeypatch):
    monkeypatch.setattr(following, "EXPLAINED", 1000.0)
    end(job, worker=1)
    events = watch(job)
    assert next(events).status == 1
    end(job, ps=143)
    assert [each.status for each in events] == [-15]


@pytest.mark.parametrize("status", [137, 1])
def test_signals_that_are_read_with_a_failure_come_after_it(status, job, says):
    """srun has ended the other nodes by the time that the files are read."""
    failed = write_event(NodeFailure(Cause("ps:0", "", "no rows"), root=True)).rstrip()
    (job.folder / "worker-0.jsonl").write_bytes(SIGNAL + b"\n")
    (job.folder / "ps-0.jsonl").write_bytes(failed + b"\n" if status == 1 else b"")
    end(job, worker=143, ps=status)
    events = [each for each in watch(job) if not isinstance(each, JobNote)]
    ends = ["ps:0"] if status == 137 else ["ps:0", "ps:0"]
    assert [each.node for each in events] == [*ends, "worker:0", "worker:0"]


def test_what_a_job_waits_for_is_told_once(job, gives):
    events = watch(job)
    look(job, events)
    gives(Answer("PENDING", "None"))
    look(job, events)
    gives(Answer("PENDING", "PartitionTimeLimit"))
    assert next(events) == JobNote("Slurm job 7 waits: PartitionTimeLimit", warns=True)
    gives(Answer("PENDING", "PartitionTimeLimit"))
    look(job, events)
    look(job, events)
    gives(Answer("SUSPENDED", "None"))
    assert next(events) == JobNote("Slurm job 7 is suspended")


def test_a_job_that_slurm_does_not_know_may_go_on(job, gives, monkeypatch):
    """Where squeue is a script that tells what was true a while ago, a new job is not
    known at first."""
    monkeypatch.setattr(following, "END_GRACE", 0.0)
    events = watch(job)
    look(job, events)
    gives(Answer(""))
    look(job, events)
    look(job, events)
    gives(Answer("PENDING", "Resources"))
    assert next(events) == JobNote("Slurm job 7 waits: Resources")
    end(job, worker=1, ps=1)
    assert [each.status for each in events] == [1, 1]


def test_a_job_that_is_gone_is_named(job, says, monkeypatch):
    monkeypatch.setattr(following, "UNKNOWN", 0.01)
    monkeypatch.setattr(asking, "ASK", 0.001)
    says(Answer(""))
    (job.folder / "worker-0.jsonl").touch()
    assert failure(job) == (
        "Slurm job 7 is no longer known to Slurm, and its nodes have not recorded how they"
        f" ended in '{job.folder}'"
    )


def test_an_answer_from_before_a_silence_does_not_end_a_job(job, gives, monkeypatch):
    monkeypatch.setattr(following, "END_GRACE", 0.0)
    events = watch(job)
    look(job, events)
    gives(Answer(""))
    gives(RunError("no controller"))
    look(job, events)
    monkeypatch.setattr(following, "UNKNOWN", 0.0)
    look(job, events)
    look(job, events)


def test_a_job_of_which_slurm_has_said_nothing_has_ended(job, says):
    says(RunError("no controller"))
    (job.folder / "worker-0.jsonl").touch()
    (job.folder / "ended").touch()
    assert failure(job).startswith(
        "Slurm job 7 has ended, and its nodes have not recorded"
    )


def test_a_quota_that_is_used_up_is_guessed(job, says):
    """node.sh could not write how its node has ended."""
    says(Answer("COMPLETED"))
    (job.folder / "worker-0.new").touch()
    assert failure(job).endswith("is your quota used up?")


def test_a_job_that_was_cancelled_before_it_began_is_named(job, says, monkeypatch):
    monkeypatch.setattr(following, "END_GRACE", 1000.0)
    says(Answer("CANCELLED", "None"))
    assert failure(job) == "Slurm job 7 has state CANCELLED"


def test_the_log_of_a_job_that_failed_is_told(job, says):
    says(Answer("FAILED", "NonZeroExitCode"))
    lines = [
        "slurmstepd-n1: error: execve(): bash: No such file or directory",
        *(
            f"srun: error: n{i}: tasks 0-1: Exited with exit code 2"
            for i in range(1, 13)
        ),
    ]
    job.log.write_text("\n".join(lines))
    (job.folder / "ended").write_text("2\n")
    said = "\n    ".join([lines[0], "...", *lines[-9:]])
    assert failure(job) == (
        "Slurm job 7 has state FAILED (NonZeroExitCode), and its nodes have not recorded how"
        f" they ended in '{job.folder}':\n    {said}\n  log: {job.log}"
    )


def test_a_folder_that_was_removed_is_named(job, says):
    says(Answer("FAILED", "NonZeroExitCode"))
    shutil.rmtree(job.folder)
    assert failure(job) == (
        "Slurm job 7 has state FAILED (NonZeroExitCode), and its folder no longer"
        f" exists: '{job.folder}'"
    )


def test_a_file_system_that_is_full_is_named(job, says, monkeypatch):
    says(Answer("RUNNING", "None"))
    (job.folder / "ended").touch()
    full = os.statvfs_result([4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255])
    monkeypatch.setattr(os, "statvfs", lambda folder: full)
    assert (
        failure(job)
        == f"Slurm job 7 has ended: the file system of '{job.folder}' is full"
    )


def test_a_folder_that_the_machines_do_not_share_is_named(job, says):
    says(Answer("FAILED", "NonZeroExitCode"))
    assert failure(job) == (
        "Slurm job 7 has state FAILED (NonZeroExitCode): nothing was written in"
        f" '{job.folder}': is it shared with the machines of the job?"
    )


def test_a_node_that_is_lost_with_its_machine_is_named(job, says):
    says(Answer("NODE_FAIL", "NodeDown"))
    end(job, worker=1)
    *_, last = watch(job)
    why = "Slurm job 7 has state NODE_FAIL (NodeDown)"
    assert last == NodeEnded("ps:0", None, why)


def test_events_that_could_not_be_written_are_told(job, says):
    (job.folder / "worker-0.jsonl").write_bytes(b'1\n{"event')
    end(job, worker=0, ps=0)
    (job.folder / "ended").write_text("0\n")
    lines, note, *_ = watch(job)
    assert lines == NodeLines("worker:0", [b"1"])
    assert "worker-0.jsonl ends within a line" in note.text


@pytest.mark.parametrize(
    ("status", "log"),
    [
        (1, "/usr/bin/python3: No module named placer"),
        (127, "node.sh: line 7: /opt/python: No such file or directory"),
        (127, "node.sh: line 7: python: command not found"),
    ],
)
def test_a_python_that_is_missing_or_without_placer_has_a_hint(status, log, job, says):
    (job.folder / "worker-0.log").write_text(f"{log}\n")
    end(job, worker=status)
    assert "--option python=PATH" in next(watch(job)).why


def test_a_python_with_another_program_named_placer_has_a_hint(job, says):
    log = "/usr/bin/python3: No module named placer.command\n"
    (job.folder / "worker-0.log").write_text(log)
    end(job, worker=1)
    assert "pip uninstall placer" in next(watch(job)).why


def test_a_module_of_the_model_that_is_missing_has_no_hint(job, says):
    (job.folder / "worker-0.log").write_text("No module named 'rows'\n")
    (job.folder / "worker-0.jsonl").touch()
    end(job, worker=1)
    assert next(watch(job)) == NodeEnded("worker:0", 1, host="n1")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\0", b"", b"9" * 5000, b"none n1", b"-9 n1", "٣ n1".encode()]
)
def test_an_end_that_cannot_be_read_is_no_success(content, job, says):
    (job.folder / "worker-0.ended").write_bytes(content)
    event = next(watch(job))
    assert (event.node, event.status == 0) == ("worker:0", False)


def test_lines_of_events_are_passed_on_as_they_are(job, says):
    """The launcher names the node whose event is none."""
    odd = [b"", b"\xff\0", json.dumps({"event": "none"}).encode(), b"x" * 5_000_000]
    (job.folder / "ps-0.jsonl").write_bytes(b"\n".join(odd) + b"\n")
    assert next(watch(job)) == NodeLines("ps:0", odd)
