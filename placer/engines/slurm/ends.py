"""Why Slurm has ended a job: as its log says it, or else squeue."""

from __future__ import annotations

import re
from typing import Final

from placer.engines.slurm.job import Answer

_WORDS: Final = {
    "BOOT_FAIL": "has ended, since a machine did not start",
    "CANCELLED": "was cancelled",
    "COMPLETED": "has ended",
    "DEADLINE": "has ended, since it could not meet its deadline",
    "FAILED": "has failed",
    "NODE_FAIL": "has ended, since Slurm has lost one of its machines",
    "OUT_OF_MEMORY": (
        "has ended, since a node was out of memory: --option memory=SIZE gives each node"
        " more"
    ),
    "PREEMPTED": "was preempted: another job has taken its machines",
    "REQUEUE": "was put back into the queue",
    "TIMEOUT": "has reached its time limit: --option time=LIMIT gives it more",
}
"""By the state of a job, or the state in which it is about to be."""
_CANCELLED: Final = re.compile(
    r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?"
)
"""What slurmstepd writes when it ends a job, or one of its steps."""
_DUE_TO: Final = {
    "TIME LIMIT": "TIMEOUT",
    "PREEMPTION": "PREEMPTED",
    "NODE FAILURE": "NODE_FAIL",
    "JOB REQUEUE": "REQUEUE",
}
_OUT_OF_MEMORY: Final = re.compile(r"oom.kill event|: Out Of Memory", re.IGNORECASE)
_REASONS: Final = {
    "DeadLine": "DEADLINE",
    "NodeDown": "NODE_FAIL",
    "OutOfMemory": "OUT_OF_MEMORY",
    "Preempted": "PREEMPTED",
    "TimeLimit": "TIMEOUT",
}
"""What squeue says of a job that is about to end."""
_NOISE: Final = re.compile(
    "Exited with exit code|Terminating|CANCELLED AT|Job step aborted|forcing job"
    "|got SIGCONT|tasks? .*: Killed|logs of the nodes|cpu binding"
)
"""Lines of the log that follow from others."""


def why_ended(log: str, answer: Answer | None) -> str:
    """Return why Slurm has ended a job, or is about to, such as `was cancelled`; empty if
    nothing says so.

    Args:
        log: what the batch script and Slurm have written.
        answer: what squeue says.
    """
    if _OUT_OF_MEMORY.search(log):
        return _WORDS["OUT_OF_MEMORY"]
    is_cancelled = False
    for what, reason in _CANCELLED.findall(log):
        for start, state in _DUE_TO.items():
            if reason.startswith(start):
                return _WORDS[state]
        # srun ends the step of a job in which a node has failed.
        is_cancelled |= what == "JOB"
    if answer is not None:
        state = _REASONS.get(answer.reason, answer.state)
        if state in _WORDS and state not in ("COMPLETED", "FAILED"):
            return _WORDS[state]
    return _WORDS["CANCELLED"] if is_cancelled else ""


def words_of(state: str) -> str:
    """Return the state of a job that is over in words, such as `has failed`; squeue may be
    late to say that it is."""
    if not state:
        return "is not known to Slurm any more"
    return _WORDS.get(state, _WORDS["COMPLETED"])


def first_error(log: str) -> str:
    """Return the first line of a log that reports an error and is no consequence of another
    one; empty if there is none."""
    lines = [line.strip() for line in log.splitlines()]
    errors = [line for line in lines if re.search("error|fatal", line)]
    causes = [line for line in errors if not _NOISE.search(line)]
    causes += [line for line in errors if _CANCELLED.search(line)]  # of a step
    return causes[0] if causes else ""
