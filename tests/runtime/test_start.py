"""What nodes must agree on before they start, and how a run in threads ends."""

import os
import signal
import threading
from pathlib import Path

import pytest

import placer
from placer import RunError
from placer.files import find
from placer.plan import read_plan
from placer.runtime.channel.memory import MemoryHub
from placer.runtime.events import nobody
from placer.runtime.execution import Execution, Options
from placer.runtime.process import _attempt, run_in_threads


@pytest.fixture
def build(tmp_path: Path) -> Path:
    placer.compile(find("specs/two_workers.yaml"), tmp_path / "build")
    return tmp_path / "build"


def test_nodes_that_were_started_unlike_are_told_so_and_do_not_wait(build, tmp_path):
    plan = read_plan(build)
    hub = MemoryHub([node.name for node in plan.nodes], deadline=30)
    saves = {"worker:0": tmp_path / "saved", "worker:1": None}
    errors: dict[str, BaseException] = {}

    def one(name: str) -> None:
        options = Options(steps=2, save_params=saves[name])
        channel = hub.channel(name)
        run = Execution(plan, build, plan.node(name), channel, options, nobody)
        try:
            _attempt(run)
        except RunError as error:
            errors[name] = error

    threads = [threading.Thread(target=one, args=(name,)) for name in saves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors["worker:0"].args[0] == (
        "the nodes were not started alike: --save-params: "
        "worker:0: True, worker:1: False"
    )
    assert "not started alike" in str(errors["worker:1"])


def test_an_interrupt_ends_a_run_in_threads(build, tmp_path):
    """The history is a pipe: once a step was written, the main thread is interrupted."""
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
