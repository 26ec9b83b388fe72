"""Which carrier a node takes when nobody says, and when somebody does."""

from __future__ import annotations

import os

import pytest
from support.free_addresses import free_addresses

from placer.channel.shared.channel import SharedMemoryChannel
from placer.channel.transport import VARIABLE, choose, open_channel
from placer.channel.zeromq.channel import ZeroMQChannel
from placer.errors import RunError

HERE = {"a:0": "127.0.0.1:4321", "b:0": "localhost:4322"}


@pytest.fixture(autouse=True)
def unsaid(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def test_nodes_of_one_machine_share_memory():
    assert choose("auto", HERE) == "shared"
    channel = open_channel("a:0", free_addresses(HERE), "job", deadline=5)
    assert isinstance(channel, SharedMemoryChannel)
    channel.close()


def test_what_is_asked_for_is_taken(monkeypatch):
    assert choose("zeromq", HERE) == "zeromq"
    assert choose("shared", HERE) == "shared"
    monkeypatch.setenv(VARIABLE, "zeromq")
    assert choose("auto", HERE) == "zeromq"
    assert choose("shared", HERE) == "shared"
    channel = open_channel("a:0", free_addresses(HERE), "job", beat=0.5)
    assert isinstance(channel, ZeroMQChannel)
    channel.close()


def test_a_carrier_that_there_is_not_is_an_error_with_the_nearest(monkeypatch):
    with pytest.raises(RunError, match=r"^carrier 'zeromp' is no carrier") as raised:
        choose("zeromp", HERE)
    assert raised.value.hint == "did you mean 'zeromq'?"
    monkeypatch.setenv(VARIABLE, "tcp")
    with pytest.raises(RunError, match=rf"^{VARIABLE} is 'tcp', which is no carrier"):
        choose("auto", HERE)


def test_addresses_beyond_this_machine_are_refused():
    with pytest.raises(RunError, match="b:0: addresses beyond loopback are refused"):
        choose("auto", {**HERE, "b:0": "10.0.0.1:4321"})


def test_without_such_memory_zeromq_is_taken_and_shared_is_an_error(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert choose("auto", HERE) == "zeromq"
    with pytest.raises(RunError, match="has no shared memory") as raised:
        open_channel("a:0", HERE, "job", carrier="shared")
    assert raised.value.hint == "choose the carrier zeromq"
