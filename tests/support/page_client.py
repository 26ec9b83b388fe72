"""Runs a command of a page by the server at `PAGE_COMMANDS`: `page_client.py placer WORDS`.

It imports little, and runs with `python -I -S`.
"""

import json
import os
import signal
import socket
import sys

HEADER = 8


def main() -> int:
    """Send the command, pass signals on to it, and return its status."""
    message = {
        "words": sys.argv[1:],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    text = json.dumps(message).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["PAGE_COMMANDS"])
        socket.send_fds(connection, [len(text).to_bytes(HEADER, "big")], [0, 1, 2])
        connection.sendall(text)
        child = int.from_bytes(connection.recv(HEADER, socket.MSG_WAITALL), "big")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(child, number))
        status = connection.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main())
