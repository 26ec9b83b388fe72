"""The interval between checkpoints that is a time, in a run that goes on after failures."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.checkpointed import build

from placer.plan.plan import read_plan
from placer.plan.settings.evaluation_and_stopping import Interval
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.control.checkpoint_settings import CheckpointSettings
from placer.runtime.saving.checkpoints import Checkpoints
from placer.runtime.saving.resumed_checkpoint import Continued
from placer.runtime.saving.writing_thread import WritingThread


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return read_plan(build(tmp_path_factory.mktemp("intervals")))


def resume(checkpoints: Checkpoints, folder: Path, written: float) -> None:
    continued = Continued(
        SimpleNamespace(step=3, workers={}), folder / "step-000003", written
    )
    checkpoints.continue_from(continued, is_own=True)


@pytest.mark.parametrize(
    ("every", "waited", "seconds"),
    [
        ("60s", 0.5, 60),
        ("auto", 0.0, 10),
        ("auto", 0.1, 50),  # 500 times the wait for the last checkpoint
    ],
)
def test_the_interval_counts_from_the_checkpoint_that_was_resumed(
    plan, tmp_path, every, waited, seconds
):
    """Otherwise, failures that are closer together than the interval would always lead back
    to the same checkpoint."""
    settings = CheckpointSettings(tmp_path, Interval.parse(every), 3, None)
    execution = SimpleNamespace(
        checkpointing=settings, plan=plan, me=plan.nodes[0], is_control=True
    )
    thread = WritingThread("worker:0", waits=False)
    checkpoints = Checkpoints(
        execution, {}, {}, {}, None, Order(), lambda: None, thread
    )
    checkpoints.note_wait(waited)
    assert not checkpoints.is_time()
    resume(checkpoints, tmp_path, time.time() - seconds + 5)
    assert not checkpoints.is_time()
    resume(checkpoints, tmp_path, time.time() - 6)
    assert checkpoints.is_time()
    assert not checkpoints.is_time()
