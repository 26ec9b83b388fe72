"""The handshake of nodes with different options, and interrupts of a run in threads."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import placer
from placer import RunError
from placer.channel.in_process import memory_channels
from placer.compiler.driver import compile as compile_model
from placer.plan.plan import read_plan
from placer.runtime.control.events import State, show_output
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import root_cause_reported
from placer.runtime.control.options import Options
from placer.runtime.node.program_file import load_program
from placer.runtime.process.threads import run_in_threads
from placer.runtime.training_loop.executor import execute
from placer.system.resources import find_file

STUCK = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 1]", y: "float32[batch, 1]"}
data: {train: {source: "python:stuck:rows", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: loss, op: mean_squared_error, in: [h, y]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@pytest.fixture
def build(tmp_path: Path) -> Path:
    placer.compile(find_file("specs/two_workers.yaml"), tmp_path / "build")
    return tmp_path / "build"


def test_nodes_with_different_options_raise_at_once(build, tmp_path):
    plan = read_plan(build)
    channels = memory_channels([node.name for node in plan.nodes], deadline=30)
    saves = {"worker:0": tmp_path / "saved", "worker:1": None}
    errors: dict[str, BaseException] = {}

    def run_node(name: str) -> None:
        options = Options(steps=2, save_params=saves[name])
        channel = channels[name]
        run = Execution(plan, build, plan.node(name), channel, options, show_output)
        try:
            with root_cause_reported(run):
                execute(run, load_program(build, plan, run.me), None)
        except RunError as error:
            errors[name] = error

    threads = [threading.Thread(target=run_node, args=(name,)) for name in saves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors["worker:0"].args[0] == (
        "the nodes were not started with the same build and options: --save-params: "
        "given on worker:0; not given on worker:1"
    )
    assert "not started with the same build and options" in str(errors["worker:1"])


def test_the_state_has_the_number_of_rows_read(build):
    plan = read_plan(build)
    node = plan.nodes[0]
    channel = memory_channels([each.name for each in plan.nodes])[node.name]
    events: list[State] = []
    run = Execution(plan, build, node, channel, Options(), events.append)
    run.report_state("reading rows")
    run.report_rows(1_200_000)
    run.report_state()
    run.report_state("compiling")
    assert [(event.state, event.rows) for event in events] == [
        ("reading rows", 0),
        ("reading rows", 1_200_000),
        ("compiling", 0),
    ]
    channel.close()


def test_an_interrupt_ends_a_run_in_threads(build, tmp_path):
    """The history is a pipe: after its first line the main thread is interrupted."""
    lines = tmp_path / "lines"
    os.mkfifo(lines)

    def interrupt() -> None:
        with lines.open() as file:
            file.readline()
            os.kill(os.getpid(), signal.SIGINT)
            for _ in file:  # until the run has closed it
                pass

    reader = threading.Thread(target=interrupt)
    reader.start()
    with pytest.raises(KeyboardInterrupt):
        run_in_threads(build, Options(steps=10**9, history=lines))
    reader.join()


def test_an_interrupt_does_not_wait_for_a_stuck_thread(tmp_path):
    """A reader waits forever, and opens a pipe before it does."""
    asked = tmp_path / "asked"
    os.mkfifo(asked)
    (tmp_path / "stuck.py").write_text(
        "import threading\n"
        "class Rows:\n"
        "    def __len__(self):\n        return 8\n"
        "    def __getitem__(self, i):\n"
        f"        open({str(asked)!r}, 'w').close()\n"
        "        threading.Event().wait()\n"
        "def rows():\n    return Rows()\n"
    )
    (tmp_path / "stuck.yaml").write_text(STUCK)
    compile_model(tmp_path / "stuck.yaml", tmp_path / "build")
    code = (
        "import sys\n"
        "from placer.runtime.process.threads import run_in_threads\n"
        "run_in_threads(sys.argv[1])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "build"], stderr=subprocess.PIPE
    )
    with asked.open():  # waits until the reader opens it
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith(b"KeyboardInterrupt")
