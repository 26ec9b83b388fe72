"""Runs several processes together, each on some of the cores."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from cpu_times import CpuTimes

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class Process:
    """A command line, and the cores that it may use, such as "0,1".

    One that `serves` does not end by itself: it is ended when all others have.
    """

    command: Sequence[str]
    cores: str
    serves: bool = False


def run_together(
    processes: Sequence[Process],
    seconds: float = 240,
    times: CpuTimes | None = None,
) -> list[str]:
    """Start all processes; return what each of them that ends by itself printed.

    `times` reads their CPU times meanwhile.

    Raises RuntimeError, with what a process wrote to standard error, if it fails, or
    does not end within `seconds`.
    """
    until = time.monotonic() + seconds
    running: list[subprocess.Popen[str]] = []
    printed = []
    with ExitStack() as files:
        errors = [files.enter_context(TemporaryFile("w+")) for _ in processes]
        try:
            for each, error in zip(processes, errors, strict=True):
                running.append(_start(each, error))
            if times is not None:
                times.start([process.pid for process in running])
                files.callback(times.stop)
            for each, process, error in zip(processes, running, errors, strict=True):
                if each.serves:
                    continue
                try:
                    left = until - time.monotonic()
                    printed.append(process.communicate(timeout=left)[0])
                except subprocess.TimeoutExpired:
                    raise RuntimeError(_failure(each, error, "does not end")) from None
                if process.returncode:
                    status = f"ended with {process.returncode}"
                    raise RuntimeError(_failure(each, error, status))
        finally:
            for process in running:
                process.kill()
                process.wait()
    return printed


def _start(process: Process, errors: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["taskset", "--cpu-list", process.cores, *process.command],
        stdout=subprocess.DEVNULL if process.serves else subprocess.PIPE,
        stderr=errors,
        text=True,
        env=ENVIRONMENT,
    )


def _failure(process: Process, error: IO[str], what: str) -> str:
    error.seek(0)
    return f"{' '.join(process.command)} {what}\n{error.read()}"
