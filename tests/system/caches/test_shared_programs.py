"""Processes that need the same compiled program at the same time compile it once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from placer.system.caches.shared_programs import SharedPrograms

COMPUTE = """
import os, sys, warnings
import jax
from placer.system.caches.compilation import keep_compiled
keep_compiled()
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
warnings.simplefilter("ignore")
print("ready", flush=True)
sys.stdin.readline()
jax.jit(lambda x: x * 2 + 1)(1.0)
jax.jit(lambda x: x * x - 1)(1.0)
names = ("cache_hits", "cache_misses")
print(*(sum(event.endswith("/" + name) for event in events) for name in names))
"""
HOLD = """
import sys
from pathlib import Path
from placer.system.caches.shared_programs import SharedPrograms
print(SharedPrograms(Path(sys.argv[1])).get("a"), flush=True)
sys.stdin.readline()
"""


def start(code: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def run_together(count: int, cache: Path) -> tuple[int, int]:
    """Return how many programs processes have loaded, and how many they have compiled."""
    processes = [start(COMPUTE, PLACER_CACHE=str(cache)) for _ in range(count)]
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    counts = []
    for each in processes:
        with each:
            counts.append(map(int, each.communicate()[0].split()))
    loaded, compiled = map(sum, zip(*counts, strict=True))
    return loaded, compiled


def test_processes_that_need_the_same_programs_compile_each_once(
    tmp_path: Path,
) -> None:
    assert run_together(3, tmp_path) == (4, 2)
    damaged, _ = sorted(tmp_path.glob("xla-*/jit_*-cache"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100])
    assert run_together(1, tmp_path) == (1, 1)
    assert len(damaged.read_bytes()) > 100, "a damaged file is replaced"


def test_a_program_of_a_process_that_has_died_is_compiled_by_another(
    tmp_path: Path,
) -> None:
    with start(HOLD, tmp_path) as process:
        process.kill()
    programs = SharedPrograms(tmp_path)
    assert programs.get("a") is None
    programs.put("a", b"code")
    assert programs.get("a") == b"code"
    assert [file.name for file in tmp_path.glob("*-cache")] == ["a-cache"]


def test_a_stopped_process_delays_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(HOLD, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        assert SharedPrograms(tmp_path, patience=0).get("b") is None
        assert SharedPrograms(tmp_path, patience=0).get("a") is None
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits again"))
        assert SharedPrograms(tmp_path).get("a") is None
        process.kill()
