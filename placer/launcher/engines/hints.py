"""The hints for what the tools of engines say: no more than these.

An error shows the tool's own lines. What a tool says changes with its releases, so a hint
is here only if most users meet the error, and an option of placer is the answer.
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
        "sbatch",
        "node configuration is not available",
        "no machine has what a node asks for: --option cpus=N, memory=SIZE or"
        " partition=NAME",
        "placer chooses the CPUs and the memory; sbatch does not say which is too much",
    ),
    Hint(
        "slurmstepd",
        "(?i)out.of.memory|oom.kill",
        "--option memory=SIZE gives each node more",
        "the limit is what placer has computed from the plan",
    ),
    Hint(
        "node.sh",
        "No module named",
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
