"""The number of threads that XLA computes with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from placer.system.cores import usable_cores, xla_threads

COUNT = """
import os
from pathlib import Path
from placer.system.cores import fix_threads, xla_threads

fix_threads()
os.environ.pop("NPROC", None)  # a change after the start has no effect
import jax.numpy as jnp

jnp.ones((256, 256)) @ jnp.ones((256, 256))
names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
print(sum("XLAEigen" in name for name in names), xla_threads())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs Linux")
def test_the_number_of_threads_is_fixed_at_the_start() -> None:
    environment = {**os.environ, "NPROC": "3", "PJRT_NPROC": ""}
    counted = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True
    )
    assert counted.stdout.split() == ["3", "3"], counted.stderr


@pytest.mark.parametrize("value", ["", "0", "-2", "two", "²"])
def test_a_number_of_threads_that_xla_ignores_is_ignored(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    for name in ("PJRT_NPROC", "NPROC"):
        monkeypatch.setenv(name, value)
    assert xla_threads() == usable_cores()
