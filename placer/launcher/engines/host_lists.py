"""Expands Slurm's short lists of hosts, such as `n[1-3,07],gpu1`, and tasks, such as
`2(x3),1`."""

from __future__ import annotations

import re
from typing import Final

from placer.errors import PlacerError

MAX_HOSTS: Final = 1 << 20
"""The largest number of hosts in a list."""
_PART: Final = r"(?:[^,\[\]\s]|\[[0-9,-]+\])+"
"""A name with ranges of numbers in brackets."""


def expand_hosts(text: str) -> list[str]:
    """Return the names in a list of hosts.

    >>> expand_hosts("n[08-10,12],gpu1")
    ['n08', 'n09', 'n10', 'n12', 'gpu1']
    """
    if not re.fullmatch(f"{_PART}(?:,{_PART})*", text):
        raise PlacerError(f"'{text}' is not a list of hosts")
    return [name for part in re.findall(_PART, text) for name in _expand(part)]


def _expand(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    ranges, _, tail = rest.partition("]")
    tails = _expand(tail) if tail else [""]
    names = []
    for each in ranges.split(","):
        low, dash, high = each.partition("-")
        last = high if dash else low
        if not (low.isdecimal() and last.isdecimal() and int(low) <= int(last)):
            raise PlacerError(
                f"'{part}' is not a list of hosts: '{each}' is not a range"
            )
        if (int(last) - int(low) + 1) * len(tails) > MAX_HOSTS:
            raise PlacerError(f"'{part}' has more than {MAX_HOSTS:,} hosts")
        names += [
            f"{head}{number:0{len(low)}}{end}"
            for number in range(int(low), int(last) + 1)
            for end in tails
        ]
    return names


def expand_tasks(text: str) -> list[int]:
    """Return the number of tasks on each host.

    >>> expand_tasks("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if found is None:
            raise PlacerError(f"'{text}' is not a list of numbers of tasks")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts
