"""Hints for a Python of another machine that cannot import placer."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import cast

import pytest

from placer.launcher.cause import failure_from_exit
from placer.launcher.child import Child
from placer.launcher.node_process import NodeProcess
from placer.launcher.other_python import REMOVE_OTHER, hint_without_placer
from placer.runtime.process.interpreter import COMMAND, interpreter


@pytest.fixture
def other_program(tmp_path: Path) -> Path:
    """A folder with another program's package `placer`."""
    (tmp_path / "placer").mkdir()
    (tmp_path / "placer" / "__init__.py").touch()
    return tmp_path


def said_without_placer(path: Path, module: str) -> str:
    """Return the error of a Python that runs a module of placer with only these packages."""
    python, *options = interpreter(module)
    done = subprocess.run(
        [python, "-S", *options],
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("module", [COMMAND, "placer.launcher.engines.ray.node"])
def test_another_program_named_placer_has_a_hint(
    module: str, other_program: Path
) -> None:
    said = said_without_placer(other_program, module)
    assert hint_without_placer(said, "install it") == REMOVE_OTHER


def test_a_python_without_placer_has_the_hint_of_its_launcher(tmp_path: Path) -> None:
    said = said_without_placer(tmp_path, COMMAND)
    assert hint_without_placer(said, "install it") == "install it"


@pytest.mark.parametrize("name", ["placer_rows", "jax", "rows"])
def test_another_missing_module_has_no_hint(name: str) -> None:
    assert hint_without_placer(f"No module named '{name}'", "install it") is None


@pytest.mark.parametrize(
    ("status", "said", "hint"),
    [
        (1, "python: No module named placer.command", REMOVE_OTHER),
        (1, "(ModuleNotFoundError: No module named 'placer')", "set --python to"),
        (127, "sh: python: not found", "set --python to"),
    ],
)
def test_a_node_started_by_ssh_has_a_hint(
    status: int, said: str, hint: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{said}\n")
    child = NodeProcess(
        node="worker:1",
        log=log,
        report_fd=-1,
        pidfd=-1,
        exit_status=status,
        by_ssh=True,
        process=cast(Child, None),
        order_fd=None,
    )
    failure = failure_from_exit(child, None)
    first, second = failure.text.splitlines()
    assert first == f"worker:1 ended with exit status {status}: {said}"
    assert second.startswith(f"  hint: {hint}")
