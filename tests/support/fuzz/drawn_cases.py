"""Runs random cases of a format within limits, and reports failures.

Environment variables: PLACER_FUZZ_SEED is the seed of all cases (`fresh`: another one
in each run), PLACER_FUZZ_SECONDS the time that each slow test takes, PLACER_FUZZ_CASE
the number of a single case to run again, which a failure prints.
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
"""The default time for each format in the slow tests, in seconds."""
MAX_SECONDS = 30.0
"""The CPU time that a case may take, in seconds, before it counts as a hang."""
MAX_BYTES = 3 << 30
"""The bytes of address space that a case may add. More raises MemoryError, a failure,
before the machine runs out of memory."""


@dataclass(frozen=True)
class Format:
    """A file format: `draw` makes an input in the folder `work`, `read` reads it.

    `read` may raise PlacerError; any other exception fails the test.
    """

    name: str
    draw: Callable[[Random, Path], Any]
    read: Callable[[Any, Path], None]


class CaseTimeout(BaseException):
    """A case takes too long; a BaseException, so that the code under test passes it
    on."""


@contextmanager
def resource_limits(seconds: float, size: int) -> Iterator[None]:
    """Limit the CPU seconds and the additional bytes of memory inside the context."""

    def stop(*_: object) -> None:
        raise CaseTimeout(f"{seconds:g} seconds of processor time")

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
    """Return the seed of all cases of this run."""
    text = os.environ.get("PLACER_FUZZ_SEED", "1")
    if text == "fresh":
        text = os.environ["PLACER_FUZZ_SEED"] = os.urandom(6).hex()
    return text


def run_cases(format: Format, work: Path, *, count: int | None = None) -> int:
    """Run `count` cases, or as many as there is time for; return the number of
    cases."""
    only = os.environ.get("PLACER_FUZZ_CASE")
    if only is not None:
        _run_case(format, work, int(only))
        return 1
    end = time.monotonic() + float(os.environ.get("PLACER_FUZZ_SECONDS", SECONDS))
    number = 0
    while number < count if count is not None else time.monotonic() < end:
        _run_case(format, work, number)
        number += 1
    return number


def _run_case(format: Format, work: Path, number: int) -> None:
    random = Random(f"{seed()}/{format.name}/{number}")
    drawn = None
    try:
        with resource_limits(MAX_SECONDS, MAX_BYTES):
            drawn = format.draw(random, work)
            with suppress(PlacerError):
                format.read(drawn, work)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        copy = work / f"{format.name}-{number}.failed"
        copy.write_bytes(drawn if isinstance(drawn, bytes) else repr(drawn).encode())
        shown = repr(drawn)
        shown = shown if len(shown) < 3000 else f"{shown[:3000]}… (see {copy})"
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
