"""Mutual TLS 1.3 between nodes, with certificates derived from the run's key.

The private key of a node is derived from the secret and the node's name. Ed25519 signatures are
deterministic, so every node can compute the certificates of its peers, and accepts no others. The
certificate of a connection proves which node is at the other end. There is no file, no authority
and no expiry.

In TLS 1.3, the handshake of a client ends before the server has checked the client's certificate.
So the client sends no data before the server does: only then have both checked each other.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from placer.channel.keys import RunKey

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

Buffer = bytes | memoryview


class Identities:
    """The certificates of the nodes of a run, as one node uses them.

    Attributes:
        client: the TLS context of connections that this node opens to `peers`.
        server: the TLS context of connections that this node accepts from `peers`.
    """

    def __init__(self, key: RunKey, node: str, peers: Collection[str]) -> None:
        self._nodes = {_certificate(key, peer)[1]: peer for peer in peers}
        trusted = b"".join(self._nodes)
        private, certificate = _certificate(key, node)
        pem = private + ssl.DER_cert_to_PEM_cert(certificate).encode()
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, pem, trusted)
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, pem, trusted)
        self.server.num_tickets = 0

    def node_of(self, stream: TlsStream) -> str | None:
        """Return the peer at the other end of a connection; None if it is no peer. The
        handshake must be done."""
        return self._nodes.get(stream.certificate() or b"")


class TlsStream:
    """A TLS connection with the methods of a non-blocking `socket.socket` that nodes use.

    OpenSSL allows one thread at a time to use a connection; a lock ensures this.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        connection.setblocking(False)
        self._tls = context.wrap_socket(
            connection,
            server_side=context.protocol is ssl.PROTOCOL_TLS_SERVER,
            do_handshake_on_connect=False,
        )
        self.family = connection.family
        self._lock = threading.Lock()

    def handshake(self) -> int:
        """Advance the handshake; return the event to wait for, or 0 once it is done.
        Raises SSLError if either side refuses the other."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return select.EPOLLIN
        except ssl.SSLWantWriteError:
            return select.EPOLLOUT
        return 0

    def getpeername(self) -> tuple[Any, ...]:
        address: tuple[Any, ...] = self._tls.getpeername()
        return address

    def certificate(self) -> bytes | None:
        return self._tls.getpeercert(binary_form=True)

    @property
    def holds_bytes(self) -> bool:
        """Whether decrypted bytes wait to be received."""
        with self._lock:
            return self._tls.pending() > 0

    def fileno(self) -> int:
        return self._tls.fileno()

    def send(self, data: Buffer) -> int:
        with self._lock:
            try:
                return self._tls.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        # Send only the first buffer: TLS has no call for several.
        return self.send(buffers[0])

    def recvmsg_into(
        self, views: Sequence[memoryview[int]], *_: int
    ) -> tuple[int, list[Any], int, None]:
        """Receive until the views are full or no more data has arrived."""
        total = 0
        for view in views:
            while view:
                with self._lock:
                    try:
                        count = self._tls.recv_into(view)
                    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                        if not total:
                            raise BlockingIOError from None
                        count = 0
                if not count:
                    return total, [], 0, None
                total += count
                view = view[count:]
        return total, [], 0, None

    def shutdown(self, how: int) -> None:
        """Shut down the TCP connection. The last frame marks the end of the run, so TLS
        need not signal the end as well."""
        socket.socket.shutdown(self._tls, how)  # SSLSocket.shutdown would end TLS first

    def close(self) -> None:
        self._tls.close()


def refusal(error: ssl.SSLError) -> str:
    """Return why a handshake failed, for the error about a node that does not join."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "the key is different"
    if error.reason and "UNKNOWN_CA" in error.reason:
        return "the peer refused the connection: the key is different"
    if error.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"):
        return "the peer does not use TLS"
    return f"TLS failed: {error.reason or error}"


@lru_cache(maxsize=4096)  # all nodes of a process have the same peers
def _certificate(key: RunKey, node: str) -> tuple[bytes, bytes]:
    """Return the private key of a node as PEM, and its certificate as DER."""
    private = Ed25519PrivateKey.from_private_bytes(key.derive("tls", node))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node[:64])])
    certificate = (
        x509.CertificateBuilder(name, name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, None)
    )
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, certificate.public_bytes(Encoding.DER)


def _context(protocol: ssl._SSLMethod, pem: bytes, trusted: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if trusted:  # empty without peers
        context.load_verify_locations(cadata=trusted)
    # The standard library loads keys from files only. A memfd keeps the key off the disk.
    fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(fd, pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context
