"""A failure of one node ends all nodes, and the last message names the root cause."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.kept_runs import find_runs
from support.marks import slow_but
from support.real_runs import (
    INDEXED_READER,
    MANY_STEPS,
    CommandResult,
    compile_small,
    launch,
    launch_command,
    node_processes,
    nodes_by_hand,
    run_command,
    running_command,
    shown_tables,
)

import placer
from placer.channel.ports import free_endpoints
from placer.compiler.driver import compile
from placer.errors import BuildError, RunError
from placer.ops.function import Function
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("small"))


def check_failed(
    ended: CommandResult, build: Path, message: str, node: str = ""
) -> None:
    """Check that all processes have ended, and that the message was printed once."""
    log = f"\n  log: {build.parent / 'logs'}/{node.replace(':', '-')}.log"
    assert ended.last_message == message + (log if node else "")
    assert ended.err.count(message.splitlines()[0]) == 1
    assert "Traceback" not in ended.err
    assert (ended.status, ended.out) == (1, "")
    assert not node_processes(build)


# Readers.


RAISED = "reader python:rows:train failed at row 17: ValueError: no such patient"
SOURCE = "small.yaml:9:20"
"""The position of the source, which is read before the first step."""


def test_a_reader_that_raises_is_named_with_its_row(tmp_path: Path) -> None:
    raises = (
        "if i == 17 and 'worker:1' in sys.argv: raise ValueError('no such patient')"
    )
    build = compile_small(tmp_path, workers=2, at_row=raises)
    message = f"worker:1 failed: {SOURCE}: {RAISED}\n  hint: see rows.py, line 6"
    check_failed(launch(build), build, message, "worker:1")


def test_a_reader_that_raises_in_a_step_is_named_with_its_row(tmp_path: Path) -> None:
    """Every row is read once per epoch, so row 17 is read in one of the 8 steps.

    There is one worker: the rows of several are compared before the first step.
    """
    build = compile_small(tmp_path, workers=1, rows=INDEXED_READER)
    ended = launch(build)
    first, hint, where, _ = ended.last_message.splitlines()
    match = re.fullmatch(rf"(worker:0) failed: step (\d): {re.escape(RAISED)}", first)
    assert match is not None
    assert hint == "  hint: see rows.py, line 7"
    assert re.fullmatch(
        r"  at worker-0/program\.py:\d+, step: op x at small\.yaml:6:3", where
    )
    check_failed(ended, build, f"{first}\n{hint}\n{where}", match[1])


@pytest.mark.parametrize("transport", slow_but(["tcp"], ["shared", "tcp"]))
def test_every_node_started_by_hand_reports_the_error_of_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setenv("PLACER_TRANSPORT", transport)
    raises = (
        "if i == 17 and 'worker:1' in sys.argv: raise ValueError('no such patient')"
    )
    build = compile_small(tmp_path, workers=2, at_row=raises)
    error = f"{SOURCE}: {RAISED}\n  hint: see rows.py, line 6\n"
    with nodes_by_hand(build) as runs:
        ends = {node: run.wait() for node, run in runs.items()}
    for node, end in ends.items():
        expected = error if node == "worker:1" else f"worker:1: {error}"
        shown = shown_tables(build, node) + expected
        assert (end.status, end.out, end.err) == (1, "", shown)


def test_nodes_that_read_different_rows_are_reported(tmp_path: Path) -> None:
    only = "if i == 60 and 'worker:1' in sys.argv: return"
    build = compile_small(tmp_path, workers=2, at_row=only)
    check_failed(
        launch(build),
        build,
        "worker:0 failed: the nodes do not read the same data: training rows differ: "
        "64 on worker:0; 60 on worker:1\n"
        "  hint: make the source return the same rows on every node",
        "worker:0",
    )


# After the result.


def test_a_crash_at_the_exit_of_an_interpreter_does_not_affect_the_result(
    tmp_path: Path,
) -> None:
    crash = "import atexit, os; atexit.register(os._exit, 139)"
    build = compile_small(tmp_path, workers=2, at_row=crash)
    ended = launch(build, f"--save-params={tmp_path / 'saved'}")
    assert ended.status == 0
    assert json.loads(ended.out)["steps"] == 8
    assert set(load_file(tmp_path / "saved")) == {"h1.w", "h1.b", "out.w", "out.b"}
    for node in ("worker:0", "worker:1"):
        assert f"warning: {node} ended with exit status 139, after the run" in ended.err
    (run,) = find_runs(tmp_path / "runs")
    assert (run.end.ended, run.end.failed_late) == ("finished", True)
    warnings = "".join(f"warning: {text}\n" for text in run.end.warnings)
    assert warnings in ended.err
    assert "worker:1 ended with exit status 139" in warnings
    assert not node_processes(build)


# Builds.


EDITS = [
    ("worker-0/program.py", lambda text: text + "print('executed')\n"),
    (
        "ps-0/program.py",
        lambda text: text.replace("node.update_from_edges", "node.forget"),
    ),
    ("plan.json", lambda text: text.replace('"epochs": 1', '"epochs": 2')),
    ("rows.py", lambda text: text.replace("range(64)", "range(32)")),
]
"""Files of a build, and how to change them."""


def edit_build(
    build: Path, folder: Path, file: str, edit: Callable[[str], str]
) -> tuple[Path, str]:
    """Return a copy of a build with a changed file, and the message that refuses it."""
    edited = Path(shutil.copytree(build, folder / "build"))
    text = (edited / file).read_text()
    assert edit(text) != text
    (edited / file).write_text(edit(text))
    return edited, (
        f"'{edited / file}' was changed after it was compiled\n"
        "  hint: change the spec, not the build, and compile again"
    )


@pytest.mark.parametrize(("file", "edit"), EDITS)
def test_an_edited_build_is_refused_before_anything_runs(
    build: Path, tmp_path: Path, file: str, edit: Callable[[str], str]
) -> None:
    edited, message = edit_build(build, tmp_path, file, edit)
    logs = tmp_path / "logs"
    for start in (
        lambda: placer.launch(edited, logs=logs),
        lambda: placer.run(edited, "worker:0"),
        lambda: placer.run(edited, "ps:0"),
    ):
        with pytest.raises(BuildError) as caught:
            start()
        assert str(caught.value) == message
    assert not logs.exists()


def test_commands_refuse_an_edited_build(build: Path, tmp_path: Path) -> None:
    edited, message = edit_build(build, tmp_path, *EDITS[0])
    message += "\n"
    ended = launch(edited, f"--history={tmp_path / 'history'}")
    assert (ended.status, ended.out, ended.err) == (2, "", message)
    for node in ("worker:0", "ps:0"):
        ended = run_command("run", edited, "--node", node)
        assert (ended.status, ended.out, ended.err) == (2, "", message)
    assert not (tmp_path / "logs").exists()


# Ports.


def test_a_port_in_use_is_named_with_the_node(build: Path) -> None:
    (address,) = free_endpoints(["ps:0"]).values()
    node, port = address.split(":")
    with socket.create_server((node, int(port))):
        ended = launch(build, f"--base-port={int(port) - 1}", "--transport=tcp")
    check_failed(
        ended,
        build,
        f"ps:0 failed: cannot listen at {address}: the port is in use\n"
        "  hint: ps:0 may already run, or another run uses the port: end it, or choose"
        " another port",
        "ps:0",
    )


# Files.


def test_wrong_parameters_are_listed_by_name(build: Path, tmp_path: Path) -> None:
    file = tmp_path / "initial"
    save_file(
        {
            "h1.w": np.zeros((4, 9), np.float32),
            "h1.b": np.zeros(8, np.float32),
            "out.w": np.zeros((8, 1), np.float64),
            "out.c": np.zeros(1, np.float32),
        },
        file,
    )
    check_failed(
        launch(build, f"--init-params={file}"),
        build,
        "ps:0 failed: the parameters do not fit the model: "
        "parameter h1.w is float32[4, 9], the model has float32[4, 8]; "
        "parameter out.b is missing; "
        "parameter out.c is not in the model; did you mean 'out.b'?; "
        "parameter out.w is float64[8, 1], the model has float32[8, 1]\n"
        "  hint: use a file that --save-params wrote for this model, or a checkpoint of"
        " this model",
        "ps:0",
    )


def test_a_file_without_parameters_is_named(build: Path) -> None:
    rows = build / "rows.py"
    ended = launch(build, f"--init-params={rows}")
    assert ended.last_message.startswith(
        f"ps:0 failed: {rows} cannot be read as parameters: "
    )
    check_failed(ended, build, ended.last_message)


def test_a_full_disk_ends_the_run_when_parameters_are_saved(tmp_path: Path) -> None:
    build = compile_small(tmp_path, size=100_000)
    saved = f"--save-params={tmp_path / 'saved'}"
    line = launch_command(build, "--steps=2", saved, "--transport=tcp")
    # Limit files to 64 KiB, as a full disk would; files in shared memory too.
    with running_command(["sh", "-c", 'ulimit -f 128; exec "$@"', "sh", *line]) as run:
        ended = run.wait()
    check_failed(
        ended,
        build,
        "worker:0 failed: after the last step: parameters cannot be written to "
        f"{tmp_path / 'saved'}: File too large\n"
        "  hint: name a file in a folder that exists and has room",
        "worker:0",
    )
    assert not list(tmp_path.glob("*saved*"))


def test_a_full_disk_ends_the_run_when_the_history_is_written(build: Path) -> None:
    ended = launch(build, MANY_STEPS, "--history=/dev/full")
    first, *rest = ended.last_message.splitlines()
    assert re.fullmatch(
        "worker:0 failed: after the last step: cannot write the history to "
        "/dev/full: No space left on device",
        first,
    )
    assert (
        rest[0]
        == "  hint: pass --history a file in an existing folder on a disk with free space"
    )
    check_failed(ended, build, ended.last_message)


# Programs.


OUTER = """
name: outer
nodes:
  worker: {count: 1}
  ps: {count: 1}
inputs:
  x: float32[batch, 4]
data:
  train: {source: "python:rows:train", batch: 8, columns: {x: x}}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: h, op: fc, in: x, size: 1000000}
      - {name: column, op: reshape, in: h, shape: [batch, 1000000, 1]}
      - {name: row, op: constant, value: 1.0, shape: [1, 8000000]}
      - {name: product, op: matmul, in: [column, row]}
      - {name: squashed, op: tanh, in: product}
      - {name: loss, op: reduce_mean, in: squashed}
train:
  minimize: loss
  epochs: 1
  metrics: [loss]
  optimizer: {op: sgd, learning_rate: 0.01, place: /node:ps/cpu}
"""


def test_a_failed_step_is_reported_with_its_line_and_its_ops(tmp_path: Path) -> None:
    compile_small(tmp_path)  # for its reader
    (tmp_path / "outer.yaml").write_text(OUTER)
    build = tmp_path / "outer"
    compile(tmp_path / "outer.yaml", build)
    ended = launch(build)
    what, where, _ = ended.last_message.splitlines()
    # 8 x 1,000,000 x 8,000,000 float32
    assert re.fullmatch(
        r"worker:0 failed: compiling: \w+: RESOURCE_EXHAUSTED: "
        r"Out of memory allocating 256\d{12} bytes\.",
        what,
    )
    assert re.fullmatch(
        r"  at worker-0/program\.py:\d+, forward_backward: "
        r"ops h at outer\.yaml:13:16 to loss at outer\.yaml:18:16",
        where,
    )
    check_failed(ended, build, ended.last_message)


@pytest.mark.parametrize(
    ("way", "op"),
    [("forward", "h1 at small.yaml:13:16"), ("backward", "loss at small.yaml:16:16")],
)
def test_a_failed_op_is_reported_with_its_position_in_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, op: str
) -> None:
    def fail(*arguments: object, **attributes: object) -> None:
        raise ValueError("no such thing")

    build = compile_small(tmp_path)
    monkeypatch.setattr(Function, way, fail)
    with pytest.raises(RunError) as caught:
        run_in_threads(build, Options(steps=1, deadline=60.0))
    what, where = str(caught.value).splitlines()
    assert what == "worker:0: compiling: ValueError: no such thing"
    program = (build / "worker-0" / "program.py").read_text().splitlines()
    match = re.fullmatch(
        rf"  at worker-0/program\.py:(\d+), forward_backward: op {re.escape(op)}", where
    )
    assert match, where
    assert f".{way}(" in program[int(match[1]) - 1]


# The run as a whole.


@pytest.mark.parametrize("transport", slow_but(["shared"], ["shared", "tcp"]))
def test_a_loss_that_diverges_stops_all_nodes(tmp_path: Path, transport: str) -> None:
    build = compile_small(tmp_path, workers=2, rate=1e20)
    saved = tmp_path / "saved.safetensors"
    ended = launch(
        build, f"--transport={transport}", f"--save-params={saved}", MANY_STEPS
    )
    message, hint = ended.last_message.splitlines()
    assert re.fullmatch(
        r"the loss 'loss' is (inf|nan) after step \d+; all nodes stopped after step \d+,"
        r" and no parameters were saved",
        message,
    )
    assert hint.startswith("  hint: find the first op with NaN")
    check_failed(ended, build, ended.last_message)
    assert not saved.exists()
