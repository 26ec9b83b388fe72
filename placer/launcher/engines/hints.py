"""The hints for what the tools of engines say: no more than these.

An error shows the tool's own lines. What a tool says changes with its releases, so a hint
is here only if many users meet the error, and the answer is an option of placer, or how
placer treats the job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Hint:
    """What to do about an error.

    Attributes:
        tool: what says it.
        said: a part of what it says, as a regular expression.
        advice: what to do.
        reason: why it is here.
    """

    tool: str
    said: str
    advice: str
    reason: str


HINTS: Final = (
    Hint(
        "Slurm",
        "node configuration is not available|(?i:out.of.memory|oom.kill)",
        "--option memory=SIZE, cpus=N or partition=NAME changes what each node gets",
        "placer chooses the memory and the CPUs; Slurm does not say which does not fit",
    ),
    Hint(
        "Slurm",
        "sbatch.*(timed out|has not answered)",
        "launch again: a job that Slurm has taken nevertheless fails when it starts, as no"
        " launcher follows it",
        "the controller of a busy cluster is slow, and users fear that a job runs twice",
    ),
    Hint(
        "node.sh",
        "^status 127\n|No module named",
        "--option python=PATH names the Python with placer on its machine",
        "the Python of the launcher is the default, and need not be there",
    ),
    Hint(
        "kubectl",
        'no matches for kind "JobSet"',
        "this cluster has no JobSet: install it (https://jobset.sigs.k8s.io), or use"
        " --option crd=none",
        "a JobSet is the default, and clusters do not have it by themselves",
    ),
    Hint(
        "kubectl",
        "AlreadyExists",
        "a run of this name is there: delete it, or name this one by --option name=NAME",
        "the name of the model is the default, so that a second run meets it",
    ),
)


def hint_of(tool: str, said: str) -> str | None:
    """Return what to do about what a tool has said, if it is one of `HINTS`."""
    found = (h.advice for h in HINTS if h.tool == tool and re.search(h.said, said))
    return next(found, None)
