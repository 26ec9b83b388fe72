"""What the launcher hears of a job that Slurm may start again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.launcher.engines.engine import JobFolder, JobNote, NodeEnded, NodeLines
from placer.launcher.engines.slurm import asking, following, watch
from placer.launcher.engines.slurm.job import Answer
from placer.runtime.control.events import (
    CheckpointSaved,
    Left,
    NodeFailure,
    SignalReceived,
    Start,
    State,
    Step,
    read_event,
    write_event,
)

pytestmark = pytest.mark.usefixtures("quick")
BEGUN = [Start(1, 9, 9, attempt=2), Step(1, 1, {"loss": 1.0})]
SIGNAL = SignalReceived("worker:0", 15)
STOPPED = [
    SIGNAL,
    Step(2, 1, {"loss": 1.0}),
    CheckpointSaved(2, "c"),
    NodeFailure(Cause("worker:0", "", "it was interrupted"), root=True),
    State("worker:0", "done"),
]
AGAIN = [JobNote("Slurm starts job 7 again (1)")]


@pytest.fixture
def job(job, monkeypatch):
    monkeypatch.setattr(asking, "ASK", 0.001)
    return replace(job, restarts=True)


def say(job, *events):
    with (job.folder / "worker-0.jsonl").open("ab") as file:
        file.write(b"".join(map(write_event, events)))


def end(job, **statuses):
    for name, status in statuses.items():
        (job.folder / f"{name}-0.ended").write_text(f"{status} n1\n")


def finish(job):
    """Let the job end with a result at its first start after `job`."""
    later = job.at_start(1)
    later.folder.mkdir()
    end(later, worker=0, ps=0)
    (later.folder / "ended").write_text("0\n")
    return later


def told(events):
    """Return events, with those that nodes have written in place of their lines."""
    found = []
    for event in events:
        if isinstance(event, NodeLines):
            found += [read_event(event.node, line) for line in event.lines]
        elif not isinstance(event, JobNote) or not event.warns:
            found.append(event)
    return found


def until_lost(events):
    """Return the next events, until the control node is lost."""
    found = []
    while not found or getattr(found[-1], "node", "") != "worker:0":
        found += told([next(events)])
    return found


ENDS = [NodeEnded("worker:0", 0, host="n1"), NodeEnded("ps:0", 0, host="n1")]


@pytest.mark.parametrize(
    ("ends", "node", "what"),
    [
        ({"ps": 137}, "ps:0", "was killed by SIGKILL"),
        ({"ps": 137, "worker": 143}, "ps:0", "was killed by SIGKILL"),
        ({"worker": 143}, "ps:0", "lost its task"),
        ({}, "", "Slurm has ended job 7, and starts it again"),
    ],
)
def test_a_job_that_has_lost_a_task_is_followed_at_its_next_start(
    ends, node, what, job, says
):
    """The attempt of which all processes leave is the last one that was reported."""
    say(job, *BEGUN, *STOPPED)
    end(job, **ends)
    (job.folder / "requeued").touch()
    events = watch(job)
    found = until_lost(events)
    later = finish(job)
    found += told(events)
    cause = Cause(node, "", what)
    assert found == [
        *BEGUN,
        *STOPPED[1:3],
        Left("ps:0", 2, cause, root=True),
        Left("worker:0", 2, cause, root=True),
        *AGAIN,
        JobFolder(later.folder),
        *ENDS,
    ]


@pytest.mark.parametrize("has_signal", [False, True])
def test_a_job_that_slurm_itself_starts_again_is_followed(
    has_signal, job, says, monkeypatch
):
    """Slurm says so, with the reason in the log of the job, or before a signal is explained."""
    monkeypatch.setattr(following, "EXPLAINED", 0.2)
    say(job, *BEGUN)
    job.log.write_text("srun: error: Node failure on n2\n")
    events = watch(job)
    found = told([next(events)])
    if has_signal:
        say(job, *STOPPED)
        end(job, worker=143)
    says(*[Answer("RUNNING")] * 50, Answer("PENDING", "BeginTime"))
    found += until_lost(events)
    says(Answer("RUNNING"))
    later = finish(job)
    found += told(events)
    cause = Cause("ps:0", "", "lost its task")
    if not has_signal:
        what = "Slurm has ended job 7, and starts it again"
        cause = Cause("", "", f"{what}\n    srun: error: Node failure on n2")
    waits = JobNote("Slurm job 7 waits: BeginTime")
    assert waits in found
    found.remove(waits)
    assert found == [
        *BEGUN,
        *(STOPPED[1:3] if has_signal else ()),
        *(Left(node, 2, cause, root=True) for node in ("ps:0", "worker:0")),
        *AGAIN,
        JobFolder(later.folder),
        *ENDS,
    ]


def test_a_start_of_which_nothing_is_heard_has_no_failure(job, says):
    later = finish(job)
    assert told(watch(job)) == [*AGAIN, JobFolder(later.folder), *ENDS]
    assert later.log == job.log


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", ""])
def test_a_job_that_a_person_or_a_limit_ends_is_not_waited_for(
    state, job, says, monkeypatch
):
    """All nodes have saved. Before Slurm says so, the job could start again."""
    say(job, *BEGUN)
    events = watch(job)
    found = told([next(events)])
    say(job, *STOPPED)
    end(job, worker=143, ps=143)
    if state:
        says(Answer(state))
    else:  # The batch script of a job that runs has ended.
        (job.folder / "ended").touch()
    found += told(events)
    assert found == [
        *BEGUN,
        *STOPPED,
        NodeEnded("worker:0", -15, host="n1"),
        NodeEnded("ps:0", -15, host="n1"),
    ]


@pytest.mark.parametrize(("worker", "ps"), [(1, 143), (143, 127), (0, 137)])
def test_an_end_of_the_run_is_told_at_once(worker, ps, job, says):
    say(job, *BEGUN, *STOPPED)
    end(job, worker=worker, ps=ps)
    found = told(watch(job))
    assert not [each for each in found if isinstance(each, Left)]
    assert len([each for each in found if isinstance(each, NodeEnded)]) == 2


def test_a_job_that_slurm_does_not_start_again_has_ended(job, says, install, tmp_path):
    """A person may cancel it while it waits, or Slurm lets a part of it wait forever."""
    install("scancel", f'echo "$@" >{tmp_path}/cancelled')
    say(job, *BEGUN)
    end(job, ps=143)
    (job.folder / "requeued").touch()
    events = watch(job)
    found = told(next(events) for _ in range(4))
    assert [each.node for each in found[-2:]] == ["ps:0", "worker:0"]
    says(Answer("FAILED", "JobLaunchFailure"))
    lost, other = told(events)
    assert (lost.node, lost.status) == ("worker:0", None)
    assert lost.why.startswith("Slurm job 7 has state FAILED (JobLaunchFailure)")
    assert (other.node, other.status) == ("ps:0", -15)
    assert (tmp_path / "cancelled").read_text() == "7\n"


def test_a_job_without_news_at_all_is_given_up(job, says):
    (job.folder / "requeued").touch()
    says(Answer("CANCELLED"))
    with pytest.raises(RunError, match="Slurm job 7 has state CANCELLED"):
        list(watch(job))
