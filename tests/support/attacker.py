"""Opens many connections to a port, and leaves them as they are. Usage: PORT COUNT.

Prints "done" when all were opened, and ends when its input ends.
"""

from __future__ import annotations

import resource
import socket
import sys

HALF_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(40)
"""The first bytes of a TLS handshake."""


def main(port: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
    opened = []
    for number in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        if number % 2:
            connection.sendall(HALF_HELLO)
        opened.append(connection)
    print("done", flush=True)
    sys.stdin.read()


main(int(sys.argv[1]), int(sys.argv[2]))
