"""Callbacks that are slower than the steps do not keep a run from saving in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.real_runs import TIMEOUT, compile_small

from placer.checkpoint.folder import list_checkpoints

PROGRAM = """
import os, signal, sys, time
import placer


class Slow:
    def on_step(self, record):
        if record.step == 150:
            os.kill(os.getpid(), signal.SIGTERM)
        if record.step < 450:
            time.sleep(0.02)


build, checkpoints = sys.argv[1:]
options = {"checkpoint": checkpoints, "checkpoint_every": "1h", "grace": 3.0}
placer.launch(build, callbacks=[Slow()], steps=1_000_000, progress=False, **options)
"""


@pytest.mark.slow
def test_a_run_with_slow_callbacks_saves_after_a_signal(tmp_path: Path) -> None:
    """The callbacks of the queued steps take longer than the nodes have to stop."""
    build, checkpoints = compile_small(tmp_path, workers=1), tmp_path / "checkpoints"
    arguments = [sys.executable, "-c", PROGRAM, str(build), str(checkpoints)]
    ended = subprocess.run(
        arguments, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert ended.returncode == 128 + 15, ended.stderr
    (_, manifest), *others = list_checkpoints(checkpoints)
    assert not others
    assert f"stopped after step {manifest.progress.step}" in ended.stderr
