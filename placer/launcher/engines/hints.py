"""Hints for errors of the engines' tools.

An error message shows the tool's own lines. Their texts change with each release, so the
list is short. A hint is here only if many users meet the error, and if it concerns an
option or a behavior of placer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Hint:
    """Advice on an error.

    Attributes:
        tool: the tool that prints the error.
        said: a regular expression for a part of the error.
        advice: the hint for the user.
        reason: the reason for this entry.
    """

    tool: str
    said: str
    advice: str
    reason: str


HINTS: Final = (
    Hint(
        "Slurm",
        "node configuration is not available|(?i:out.of.memory|oom.kill)",
        "change the resources of each node with --option memory=SIZE, cpus=N or "
        "partition=NAME",
        "placer chooses the memory and the CPUs; Slurm does not say which of "
        "them is too large",
    ),
    Hint(
        "Slurm",
        "sbatch.*(timed out|has not answered)",
        "launch again: if Slurm has accepted the job after all, it fails at its "
        "start, because no launcher follows it",
        "the controller of a busy cluster is slow, and users fear that the job "
        "runs twice",
    ),
    Hint(
        "node.sh",
        "^status 127\n|No module named",
        "set --option python=PATH to a Python with placer on its machine",
        "the default is the Python of the launcher, which may be missing there",
    ),
    Hint(
        "kubectl",
        'no matches for kind "JobSet"',
        "this cluster has no JobSet: install it (https://jobset.sigs.k8s.io), "
        "or use --option crd=none",
        "a JobSet is the default, but not part of a standard cluster",
    ),
    Hint(
        "kubectl",
        "AlreadyExists",
        "a run with this name exists: delete it, or choose another name with "
        "--option name=NAME",
        "the default is the name of the model, so a second run has the same name",
    ),
)


def hint_of(tool: str, said: str) -> str | None:
    """Return the advice for the error of a tool, or "" if `HINTS` has none."""
    found = (h.advice for h in HINTS if h.tool == tool and re.search(h.said, said))
    return next(found, None)
