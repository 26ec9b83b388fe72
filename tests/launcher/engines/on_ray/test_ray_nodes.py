"""The process of a node, as its actor on Ray starts it; without Ray."""

from __future__ import annotations

import pytest
from support.real_runs import compile_small

from placer.errors import BuildError
from placer.launcher.delivery import build_files
from placer.launcher.engines.ray.node import RayNode
from placer.plan.plan import read_plan


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return compile_small(tmp_path_factory.mktemp("small"))


def read_to_end(node: RayNode) -> tuple[list[bytes], bytes, int]:
    lines, log = [], b""
    while True:
        output = node.read()
        lines += output.lines
        log += output.log
        if output.status is not None:
            return lines, log, output.status


def test_the_log_and_the_status_of_a_process_are_complete(build):
    plan = read_plan(build)
    node = RayNode("ps:0")
    node.run(build_files(build, plan), plan.digest, ["--steps=none"], bytes(32))
    lines, log, status = read_to_end(node)
    assert (lines, status) == ([], 2)
    assert log.startswith(b"Usage: ") or b"--steps" in log
    node.kill()  # it has ended
    node.stop()


def test_a_process_is_killed_with_its_actor(build):
    plan = read_plan(build)
    node = RayNode("ps:0")
    endpoints = "--endpoints=ps:0=127.0.0.1:1,worker:0=127.0.0.1:2"
    node.run(build_files(build, plan), plan.digest, [endpoints], bytes(32))
    node.kill()
    assert read_to_end(node)[2] == -9


def test_another_build_than_the_one_that_was_sent_is_refused(build):
    plan = read_plan(build)
    with pytest.raises(BuildError, match="is not the one that was sent"):
        RayNode("ps:0").run(build_files(build, plan), "0" * 64, [], bytes(32))
