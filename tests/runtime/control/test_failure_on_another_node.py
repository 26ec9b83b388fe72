"""A node ends after a failure elsewhere, but never the process of its caller."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.small_models import load_model, two_layers

import placer
from placer import RunError
from placer.channel.interface import Aborted, Cause
from placer.channel.keys import new_key, read_key, write_key
from placer.channel.ports import free_endpoints
from placer.channel.session import Session
from placer.plan.plan import read_plan
from placer.runtime.control.events import NodeFailure, read_event
from placer.runtime.control.options import Options
from placer.runtime.node.program_file import Programs
from placer.runtime.process import attempts, nodes
from placer.runtime.training_loop.loop import Training
from placer.system.resources import find_file

pytestmark = pytest.mark.usefixtures("threads_watched")


@pytest.fixture
def build(tmp_path):
    placer.compile(find_file("specs/two_workers.yaml"), tmp_path / "build")
    return tmp_path / "build"


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_failure_elsewhere_does_not_end_the_callers_process(
    build, tmp_path, monkeypatch, transport
):
    monkeypatch.setattr(attempts, "EXIT_TIMEOUT", 1000.0)
    plan = read_plan(build)
    endpoints = free_endpoints([node.name for node in plan.nodes])
    me, *others = endpoints
    cause = Cause(others[0], "step 1", "no such file")
    write_key(tmp_path / "key", new_key())
    key = read_key(tmp_path / "key")
    job = key.derive("job").hex()
    secret = {"key": key, "build": plan.digest}

    def fail(node):
        channel = Session(node, endpoints, job, transport=transport, **secret)
        channel.join()
        channel.abort(cause)
        channel.close()

    earlier = set(threading.enumerate())
    threads = [threading.Thread(target=fail, args=(node,)) for node in others]
    for thread in threads:
        thread.start()
    with pytest.raises(Aborted) as raised:
        placer.run(
            build,
            me,
            endpoints=endpoints,
            options=Options(transport=transport, key=tmp_path / "key"),
        )
    assert raised.value.cause == cause
    for thread in threads:
        thread.join()
    begun = set(threading.enumerate()) - earlier
    timers = [t for t in begun if isinstance(t, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


def test_a_node_that_joins_after_a_failure_raises_its_cause(build):
    """The other node fails before it joins: its program cannot be loaded."""
    plan = read_plan(build)
    endpoints = free_endpoints([node.name for node in plan.nodes])
    me, other = endpoints
    failed = Session(other, endpoints, "placer", build=plan.digest)
    failed.abort(Cause(other, "", "its program cannot be loaded"))
    leaving = threading.Thread(target=failed.close)
    leaving.start()
    with pytest.raises(RunError, match=f"^{other}: its program cannot be loaded$"):
        placer.run(build, me, endpoints=endpoints)
    leaving.join()


def test_a_thread_that_fails_is_reported_while_another_one_is_stuck(
    tmp_path, monkeypatch
):
    """The process reports it although its first thread does not end."""
    spec = two_layers(nodes="{worker: {count: 1}}", train="  threads: 2")
    np.savez(tmp_path / "rows.npz", x=np.zeros((8, 16)), y=np.zeros((8, 4)))
    placer.compile(load_model(spec, tmp_path), tmp_path / "build")
    monkeypatch.setattr(attempts, "EXIT_TIMEOUT", 1000.0)
    is_stuck, is_reported = threading.Event(), threading.Event()
    run_step = Training._run_step

    def hang_or_fail(self, number):
        if self.execution.me.name == "worker:0.0":
            is_stuck.set()
            was_stuck.append(is_reported.wait(60))
            return run_step(self, number)
        assert is_stuck.wait(60)
        raise ValueError("no such patient")

    monkeypatch.setattr(Training, "_run_step", hang_or_fail)
    read, write = os.pipe()
    failures, was_stuck = [], []

    def watch():
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                event = read_event("worker:0", line)
                if isinstance(event, NodeFailure):
                    failures.append(event)
                    is_reported.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(RunError, match="no such patient"):
            placer.run(
                tmp_path / "build",
                "worker:0",
                endpoints=free_endpoints(["worker:0"]),
                report_fd=write,
            )
    finally:
        os.close(write)
        watcher.join()
    assert was_stuck == [True]  # until the report
    (failure,) = failures
    assert failure.root
    assert failure.cause.node == "worker:0.1"


def test_the_error_of_the_thread_that_has_failed_first_is_raised(monkeypatch):
    is_reported = threading.Event()

    def fail(execution, *_):
        if execution.me.name == "worker:0.0":
            assert is_reported.wait(60)
        raise RunError(f"{execution.me.name} has failed")

    monkeypatch.setattr(nodes, "run_node", fail)
    executions = [
        SimpleNamespace(
            me=SimpleNamespace(name=f"worker:0.{number}"), folder=None, plan=None,
            report_state=lambda: None, close=lambda: None,
            waits=SimpleNamespace(begin=lambda: None),
        )
        for number in range(2)
    ]  # fmt: skip
    with pytest.raises(RunError, match=r"^worker:0\.1 has failed$"):
        nodes.run_nodes(
            executions, Programs(None, None), None, lambda error: is_reported.set()
        )
