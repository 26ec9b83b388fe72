"""The error of a run, and of a node that was started by hand, says how to continue it."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner
from support.real_runs import compile_small
from support.spec_models import SPECS

from placer.command.cli import commands
from placer.command.run import run_command
from placer.errors import RunError
from placer.launcher import checks, launch
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


def test_a_launcher_names_the_whole_command(tmp_path, monkeypatch):
    """Without options that would leave out more, such as the rows of another pass."""

    def fail(*arguments):
        interruption = arguments[5]
        interruption.note(CheckpointSaved(2, "saved/step-000002"))
        raise RunError(interruption.how_to_continue)

    monkeypatch.setattr(launch, "launch_processes", fail)
    monkeypatch.setattr(checks, "check_effects", lambda plan, options: None)
    monkeypatch.chdir(tmp_path)
    spec = tmp_path / "the digits.yaml"
    spec.write_text((SPECS / "digits.yaml").read_text())
    kept = [str(spec), "--set", "train.epochs=9", "--set", "name=a", "--quiet"]
    words = ["train", "--checkpoint=elsewhere", "--out", "run", "--skip-pass", *kept]
    error = CliRunner().invoke(commands, words, prog_name="placer").exception
    assert str(error) == (
        f"continue with placer train {shlex.join(kept)}"
        " --checkpoint saved --resume saved/step-000002"
    )
