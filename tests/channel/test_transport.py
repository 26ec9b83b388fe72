"""The choice of the transport."""

from __future__ import annotations

import subprocess
import sys

import pytest

from placer.channel.session import Session
from placer.channel.transport import VARIABLE, choose_streams, choose_transport
from placer.errors import RunError

HERE = {"a:0": "127.0.0.1:4321", "b:0": "localhost:4322"}
APART = {**HERE, "b:0": "10.0.0.1:4321"}


@pytest.fixture(autouse=True)
def no_environment_variable(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def test_auto_uses_tcp_only_if_a_node_is_elsewhere():
    assert choose_streams("auto", HERE) == ("unix",)
    assert choose_streams("auto", APART) == ("unix", "tcp")
    assert choose_streams("shared", APART) == ("unix",)


def test_explicit_transport_is_used(monkeypatch):
    assert choose_transport("tcp") == "tcp"
    assert choose_transport("shared") == "shared"
    monkeypatch.setenv(VARIABLE, "tcp")
    assert choose_transport("auto") == "tcp"
    assert choose_transport("shared") == "shared"
    assert choose_streams("auto", HERE) == ("tcp",)


def test_unknown_transport_is_an_error_with_a_suggestion(monkeypatch):
    with pytest.raises(RunError, match=r"^'sharde' is not a transport") as raised:
        choose_transport("sharde")
    assert raised.value.hint == "did you mean 'shared'?"
    monkeypatch.setenv(VARIABLE, "udp")
    with pytest.raises(
        RunError, match=rf"^{VARIABLE} is 'udp', which is not a transport"
    ):
        choose_transport("auto")


@pytest.mark.parametrize(("transport", "where"), [("tcp", HERE), ("auto", APART)])
def test_connections_over_tcp_need_a_key(transport, where):
    with pytest.raises(
        RunError, match="a:0: connections over TCP need a key"
    ) as raised:
        Session("a:0", where, "job", transport=transport)
    assert "placer key new FILE" in raised.value.hint


FORKS = """
import os, signal
from placer.channel import sockets
from placer.channel.ports import free_endpoints
from placer.channel.endpoint import parse_endpoint

where = parse_endpoint("a:0", free_endpoints(["a:0"])["a:0"])

def listen():
    return sockets.listen_tcp("a:0", where), sockets.listen_unix("a:0", "j", where)

first = listen()
read, write = os.pipe()
if not (fork := os.fork()):
    os.write(write, b"forked")
    signal.pause()
try:
    os.read(read, 6)
    for listener in first:
        listener.close()
    listen()
finally:
    os.kill(fork, signal.SIGKILL)
"""


def test_a_fork_of_user_code_does_not_keep_an_address():
    subprocess.run([sys.executable, "-c", FORKS], check=True)
