"""Strangers at the port of a node, over TLS: the run goes on, and memory stays bounded."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.free_addresses import (
    BreakingProxy,
    eventually,
    exchange_messages,
    free_addresses,
    port,
)
from support.own_resources import resident
from support.raw_frames import BEAT
from support.raw_node import RawNode

from placer.channel.connecting import MAX_PENDING
from placer.channel.keys import new_key
from placer.channel.tls import Identities, TlsStream

MIB = 1 << 20
ATTACKER = Path(__file__).parents[1] / "support" / "attacker.py"


@pytest.fixture
def run(tls):
    """Channels a:0 and b:0 over TLS, and the port of a:0."""
    addresses = free_addresses(["a:0", "b:0"])
    channels = tls("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    exchange_messages(channels, 1)
    return channels, port(addresses["a:0"])


@contextmanager
def attack(where: int, count: int) -> Iterator[None]:
    """Hold so many connections that never finish the handshake."""
    with subprocess.Popen(
        [sys.executable, str(ATTACKER), str(where), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        yield
        process.communicate()


def test_ten_thousand_connections_that_never_finish_the_handshake(run):
    channels, where = run
    with attack(where, 200):  # what a process allocates once
        exchange_messages(channels, 2)
    before, refused = resident(), channels["a:0"].joining.refused
    with attack(where, 10_000):
        exchange_messages(channels, 3)
        eventually(
            lambda: channels["a:0"].joining.refused - refused >= 10_000 - MAX_PENDING,
            within=60,
        )
        exchange_messages(channels, 4)
        assert resident() - before < 32 * MIB


CLIENTS = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing": b"",
    "a record of the largest size": bytes.fromhex("160301ffff") + bytes(70_000),
    "an endless handshake": bytes.fromhex("1603014000") + bytes(16_384) * 20,
    "a frame without TLS": BEAT,
}


@pytest.mark.parametrize("sent", CLIENTS.values(), ids=CLIENTS.keys())
def test_clients_without_tls_are_refused_and_the_run_goes_on(run, monkeypatch, sent):
    monkeypatch.setattr("placer.channel.connecting.HELLO_TIMEOUT", 600.0)
    channels, where = run
    before = channels["a:0"].joining.refused
    with RawNode("tls", {"a:0": f"127.0.0.1:{where}"}) as client:
        client.send(sent)
        if not sent:
            client.finish()
        client.read_rest()
    eventually(lambda: channels["a:0"].joining.refused == before + 1)
    exchange_messages(channels, 3)


@pytest.mark.parametrize("is_of_the_run", [True, False])
def test_other_certificates_are_refused_and_the_run_goes_on(run, is_of_the_run):
    """That of another run, and that of a node which is no neighbour."""
    channels, where = run
    key = channels["a:0"].joining.key if is_of_the_run else new_key()
    stranger = Identities(key, "c:0", ["a:0"])
    before = channels["a:0"].joining.refused
    connection = socket.create_connection(("127.0.0.1", where))
    stream = TlsStream(connection, stranger.client)

    def is_refused() -> bool:
        try:
            if not stream.handshake():
                stream.recvmsg_into([memoryview(bytearray(100))])
        except BlockingIOError:
            return False
        except (ssl.SSLError, ConnectionError):
            return True
        return False

    eventually(is_refused)
    eventually(lambda: channels["a:0"].joining.refused == before + 1)
    stream.close()
    exchange_messages(channels, 3)


def test_connections_that_are_reset_at_once_are_refused_and_the_run_goes_on(run):
    """Some of them before they are accepted."""
    channels, where = run
    before = channels["a:0"].joining.refused
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", where)) as connection:
            connection.sendall(b"x")
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    eventually(lambda: channels["a:0"].joining.refused == before + 300)
    exchange_messages(channels, 3)


def test_nodes_with_long_greetings_join(tls):
    """TLS may hold a part of one that the system does not report."""
    others = dict.fromkeys((f"c:{i}" for i in range(900)), "127.0.0.1:1")
    addresses = free_addresses(["a:0", "b:0"]) | others
    channels = tls(
        "a:0",
        "b:0",
        addresses=dict.fromkeys(["a:0", "b:0"], addresses),
        peers=["a:0", "b:0"],
    )
    exchange_messages(channels, 1)


def test_a_recorded_session_that_is_played_again_has_no_effect(tls):
    addresses = free_addresses(["a:0", "b:0"])
    with BreakingProxy(port(addresses["a:0"]), 1 << 40) as proxy:
        seen_by_b = {**addresses, "a:0": f"127.0.0.1:{proxy.port}"}
        channels = tls("a:0", "b:0", addresses={"a:0": addresses, "b:0": seen_by_b})
        exchange_messages(channels, 5)
        before = channels["a:0"].joining.refused
        for _ in range(3):
            where = ("127.0.0.1", port(addresses["a:0"]))
            with socket.create_connection(where) as again, suppress(OSError):
                again.sendall(proxy.recorded)
                again.shutdown(socket.SHUT_WR)
                while again.recv(1000):
                    pass
        eventually(lambda: channels["a:0"].joining.refused == before + 3)
        exchange_messages(channels, 6)
        channels["b:0"].close()
