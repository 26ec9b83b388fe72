"""A node ends after a failure elsewhere, but never the process of its caller."""

import threading

import pytest

import placer
from placer import RunError
from placer.build.plan import read_plan
from placer.channel.keys import new_key, read_key, write_key
from placer.channel.ports import free_endpoints
from placer.channel.protocol import Aborted, Cause
from placer.channel.session import Session
from placer.resources import find_file
from placer.runtime.run import process
from placer.runtime.run.options import Options


@pytest.fixture
def build(tmp_path):
    placer.compile(find_file("specs/two_workers.yaml"), tmp_path / "build")
    return tmp_path / "build"


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_failure_elsewhere_does_not_end_the_callers_process(
    build, tmp_path, monkeypatch, transport
):
    monkeypatch.setattr(process, "EXIT_TIMEOUT", 1000.0)
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
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
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
