"""What a job waits for, in words."""

from __future__ import annotations

from typing import Final

_TIME: Final = (
    "its time limit is longer than that of the partition: --option time=LIMIT"
)
_MEANINGS: Final = {
    "BadConstraints": (
        "no machine has what its nodes ask for: --option cpus=N, memory=SIZE, or sbatch"
    ),
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; this releases it: scontrol release {number}",
    "PartitionConfig": (
        "the partition has fewer machines, CPUs or memory than it asks for, or a shorter"
        " time limit: --option partition=NAME, time=LIMIT, cpus=N or memory=SIZE"
    ),
    "PartitionDown": "the partition is closed: --option partition=NAME",
    "PartitionInactive": "the partition is closed: --option partition=NAME",
    "PartitionNodeLimit": (
        "it asks for more machines than the partition gives to a job: --option"
        " partition=NAME, or a build with fewer nodes"
    ),
    "PartitionTimeLimit": _TIME,
}
_LIMITS: Final = {
    "Assoc": "a limit of the account",
    "QOS": "a limit of the quality of service (QOS)",
    "MaxGRESPerAccount": "a limit of the account",
}
"""By how the reason begins."""


def needs_user(reason: str) -> bool:
    """Whether a job with this reason does not begin unless somebody changes something."""
    return reason in _MEANINGS


def meaning_of(reason: str, number: str) -> str:
    """Return what a job waits for: the reason as squeue says it, with its meaning where
    that says what to do.

    >>> meaning_of("Resources", "7")
    'Resources'
    >>> meaning_of("JobHeldUser", "7")
    'JobHeldUser: it is held; this releases it: scontrol release 7'
    """
    meaning = _MEANINGS.get(reason, "").format(number=number)
    for start, limit in _LIMITS.items():
        if reason.startswith(start):
            meaning = (
                f"{limit}; it waits until other jobs end, or for ever if it asks for"
                " more than that itself"
            )
    return f"{reason}: {meaning}" if meaning else reason
