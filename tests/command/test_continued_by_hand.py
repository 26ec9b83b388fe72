"""The error of a node that was started by hand says how to continue the run."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from support.real_runs import compile_small

from placer.command.run import run_command
from placer.errors import RunError
from placer.runtime.control.events import CheckpointSaved
from placer.runtime.process import entry_point


@pytest.mark.parametrize(("node", "hint"), [("worker:0", True), ("worker:1", False)])
def test_the_control_node_ends_with_the_option(tmp_path, monkeypatch, node, hint):
    """Only the control node knows the checkpoints of the run."""

    def fail(*_, signals, **__):
        signals.interruption.has_steps = True
        if hint:
            signals.interruption.note(CheckpointSaved(2, "saved/step-000002"))
        raise RunError("boom")

    monkeypatch.setattr(entry_point, "run", fail)
    build = compile_small(tmp_path, workers=2)
    arguments = [str(build), "--node", node, "--checkpoint", str(tmp_path / "saved")]
    error = CliRunner().invoke(run_command, arguments).exception
    assert isinstance(error, RunError)
    how = "continue with --checkpoint saved --resume saved/step-000002"
    assert error.hint == (how if hint else None)
