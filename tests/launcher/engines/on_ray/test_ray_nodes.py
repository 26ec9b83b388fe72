"""The process of a node, as its actor on Ray starts it; without Ray."""

from __future__ import annotations

import os
import socket
import sys

import pytest
from support.real_runs import compile_small

from placer.channel.endpoint import parse_endpoint
from placer.errors import BuildError
from placer.launcher.delivery import build_files
from placer.launcher.engines.ray.node import RayNode, _port_at
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


def test_a_process_is_killed_with_an_actor_that_the_launcher_has_lost(
    build, monkeypatch
):
    plan = read_plan(build)
    node = RayNode("ps:0", takes_orders=True)
    node.order(b"@worker:0=127.0.0.1:3;")
    assert os.read(node._orders, 100) == b"@worker:0=127.0.0.1:3;"
    endpoints = "--endpoints=ps:0=127.0.0.1:1,worker:0=127.0.0.1:2"
    node.run(build_files(build, plan), plan.digest, [endpoints], bytes(32))
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        node.where("127.0.0.1:1")
    assert read_to_end(node)[2] == -9


def test_another_build_than_the_one_that_was_sent_is_refused(build):
    plan = read_plan(build)
    with pytest.raises(BuildError, match="is not the one that was sent"):
        RayNode("ps:0").run(build_files(build, plan), "0" * 64, [], bytes(32))


def test_a_node_keeps_its_port_on_the_same_machine_if_the_port_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert _port_at(address, "127.0.0.1") is None
        # A connection that this side has closed keeps the port for a while.
        with socket.create_connection(server.getsockname()) as peer:
            server.accept()[0].close()
            peer.recv(1)
    again = _port_at(address, "127.0.0.1")
    assert again is not None
    with again:
        assert again.getsockname() == parse_endpoint("ps:0", address)
    assert _port_at(address, "127.0.0.2") is None
