"""The choice of the transport."""

from __future__ import annotations

import os

import pytest
from support.free_addresses import free_addresses

from placer.channel.shared.channel import SharedMemoryChannel
from placer.channel.transport import VARIABLE, choose_transport, open_channel
from placer.channel.zeromq.channel import ZeroMQChannel
from placer.errors import RunError

HERE = {"a:0": "127.0.0.1:4321", "b:0": "localhost:4322"}


@pytest.fixture(autouse=True)
def no_environment_variable(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def test_auto_is_shared_memory_on_one_machine():
    assert choose_transport("auto") == "shared"
    channel = open_channel("a:0", free_addresses(HERE), "job", deadline=5)
    assert isinstance(channel, SharedMemoryChannel)
    channel.close()


def test_explicit_transport_is_used(monkeypatch):
    assert choose_transport("zeromq") == "zeromq"
    assert choose_transport("shared") == "shared"
    monkeypatch.setenv(VARIABLE, "zeromq")
    assert choose_transport("auto") == "zeromq"
    assert choose_transport("shared") == "shared"
    channel = open_channel("a:0", free_addresses(HERE), "job", beat=0.5)
    assert isinstance(channel, ZeroMQChannel)
    channel.close()


def test_unknown_transport_is_an_error_with_a_suggestion(monkeypatch):
    with pytest.raises(RunError, match=r"^'zeromp' is not a transport") as raised:
        choose_transport("zeromp")
    assert raised.value.hint == "did you mean 'zeromq'?"
    monkeypatch.setenv(VARIABLE, "udp")
    with pytest.raises(
        RunError, match=rf"^{VARIABLE} is 'udp', which is not a transport"
    ):
        choose_transport("auto")


def test_addresses_of_other_machines_are_refused():
    with pytest.raises(RunError, match="b:0: addresses beyond loopback are refused"):
        open_channel("a:0", {**HERE, "b:0": "10.0.0.1:4321"}, "job")


def test_without_memfd_auto_is_zeromq_and_shared_is_an_error(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert choose_transport("auto") == "zeromq"
    with pytest.raises(RunError, match="has no shared memory") as raised:
        open_channel("a:0", HERE, "job", transport="shared")
    assert raised.value.hint == "choose the transport zeromq"
