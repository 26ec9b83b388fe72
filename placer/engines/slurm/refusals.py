"""What to change if sbatch refuses a job."""

from __future__ import annotations

from typing import Final

_LIMITS: Final = (
    "the account or its QOS allows less: --option time=LIMIT, cpus=N, memory=SIZE,"
    " account=NAME or sbatch=--qos=NAME"
)
_TOO_LARGE: Final = (
    "no machine has the CPUs and the memory that a node asks for: --option cpus=N,"
    " memory=SIZE or partition=NAME; `sinfo -Nel` lists the machines"
)
_SILENT: Final = (
    "if Slurm has taken the job nevertheless, it fails when it starts, since its files"
    " are gone"
)
_HINTS: Final = {
    "node configuration is not available": _TOO_LARGE,
    "Memory specification can not be satisfied": _TOO_LARGE,
    "Invalid partition name": "--option partition=NAME; `sinfo -s` lists them",
    "Invalid account": "--option account=NAME; your administrator knows yours",
    "Invalid qos": "--option sbatch=--qos=NAME; your administrator knows yours",
    "Invalid --time": "--option time=LIMIT, such as 30 (minutes), 2:00:00 or 1-12:00:00",
    "Requested time limit is invalid": (
        "--option time=LIMIT; `sinfo -o '%P %l'` lists the limits of the partitions"
    ),
    "Job violates accounting/QOS policy": _LIMITS,
    "Invalid feature": "`sinfo -o '%N %f'` lists the features of the machines",
    "Invalid generic resource": "`sinfo -o '%N %G'` lists the GPUs of the machines",
    "are mutually exclusive": "--option memory=SIZE is the memory of each node",
    "timed out": _SILENT,
    "not answered": _SILENT,
}
"""By a part of what sbatch says."""


def refusal_hint(said: str) -> str | None:
    """Return what to do about a refusal of sbatch; None if it is clear, or not known."""
    return next((hint for part, hint in _HINTS.items() if part in said), None)
