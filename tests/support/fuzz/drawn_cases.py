"""Running drawn cases: which are drawn, how long one may take, what a failure prints.

PLACER_FUZZ_SEED is what cases are drawn by, `fresh` for others in each run;
PLACER_FUZZ_SECONDS how long each slow test draws; PLACER_FUZZ_CASE the one case to run
again, by the number that a failure names.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from placer.errors import PlacerError

SECONDS = 20.0
"""How long each format is drawn in the slow suite."""
LONGEST = 30.0
"""Seconds of this process's own time that a case may take before it counts as a hang."""
LARGEST = 3 << 30
"""Bytes of address space that a case may take beside what there is: more is a failure,
as MemoryError, in place of the machine's memory."""


@dataclass(frozen=True)
class Format:
    """`draw` makes an input, in the folder of its name under `work`; `read` takes it as
    users do. What `read` raises is a PlacerError, or the test fails."""

    name: str
    draw: Callable[[Random, Path], Any]
    read: Callable[[Any, Path], None]


class TooLong(BaseException):
    """A case that does not end; no handler of exceptions catches it."""


@contextmanager
def limited(seconds: float, size: int) -> Iterator[None]:
    """Seconds of processor time and bytes of memory that what is within may take."""

    def stop(*_: object) -> None:
        raise TooLong(f"{seconds:g} seconds of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def seed() -> str:
    """What all cases of this run are drawn by."""
    given = os.environ.get("PLACER_FUZZ_SEED", "1")
    if given == "fresh":
        given = os.environ["PLACER_FUZZ_SEED"] = os.urandom(6).hex()
    return given


def run_cases(format: Format, work: Path, *, count: int | None = None) -> int:
    """Run so many cases, or as many as there is time for; how many that were."""
    only = os.environ.get("PLACER_FUZZ_CASE")
    if only is not None:
        _run(format, work, int(only))
        return 1
    end = time.monotonic() + float(os.environ.get("PLACER_FUZZ_SECONDS", SECONDS))
    number = 0
    while number < count if count is not None else time.monotonic() < end:
        _run(format, work, number)
        number += 1
    return number


def _run(format: Format, work: Path, number: int) -> None:
    random = Random(f"{seed()}/{format.name}/{number}")
    drawn = None
    try:
        with limited(LONGEST, LARGEST):
            drawn = format.draw(random, work)
            with suppress(PlacerError):
                format.read(drawn, work)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kept = work / f"{format.name}-{number}.failed"
        kept.write_bytes(drawn if isinstance(drawn, bytes) else repr(drawn).encode())
        shown = repr(drawn)
        shown = shown if len(shown) < 3000 else f"{shown[:3000]}… (see {kept})"
        pytest.fail(
            f"{type(error).__name__}: {error}\nof {format.name} {shown}\nrun it again with"
            f" PLACER_FUZZ_SEED={seed()} PLACER_FUZZ_CASE={number} pytest"
            f" tests/fuzz -m slow -k {format.name}\n{_trace(error)}",
            pytrace=False,
        )


def _trace(error: BaseException) -> str:
    import traceback

    lines = traceback.format_exception(error)
    return "".join(lines[-8:])
