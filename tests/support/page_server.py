"""Forks the commands of pages from one process that has imported placer and JAX.

A command of a page that starts a new process spends most of its time on imports. The
programs `placer` and `python` of a page are `page_client.py`, which sends its words, its
folder, its environment and its descriptors to this process. A fork of it runs the command.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

IMPORTS = (
    "jax",
    "numba",
    "placer.command.cli",
    "placer.compiler.build_or_spec",
    "placer.compiler.driver",
    "placer.compiler.frontend.python.program",
    "placer.launcher.train",
    "placer.readers.sklearn_sets",
    "placer.readers.source",
    "placer.report.page.collect",
    "placer.runtime.node.driver",
    "placer.runtime.process.threads",
    "placer.runtime.training_loop.executor",
    "placer.tables.compiled_kernels",
    "placer.tables.machine_code",
    "placer.tables.rule_table",
    "scipy.linalg",
    "support.page_commands",
)
SPEC = Path(__file__).parents[2] / "specs" / "digits.yaml"
HEADER = 8
"""Bytes of the length of a message."""


@contextmanager
def page_server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of a server of commands, a socket in a folder."""
    address = str(folder / "commands")
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, environment.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "support.page_server", address],
        env={**environment, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        yield address
        process.stdin.close()  # it ends


def main() -> None:
    """Serve the address in the arguments until standard input ends."""
    for name in IMPORTS:
        import_module(name)
    # So that no fork has to make the parsers of specs, or load the types of numba.
    import_module("placer.compiler.driver").compile_in_memory(SPEC)
    import_module("numba").njit("float32(float32)")(lambda x: x)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                serve(connection)
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def serve(connection: socket.socket) -> NoReturn:
    """Run the command of a client in a fork, and send its status to the client."""
    start, descriptors, _, _ = socket.recv_fds(connection, HEADER, 3)
    size = int.from_bytes(start, "big")
    text = bytearray()
    while len(text) < size:
        text += connection.recv(size - len(text))
    message = json.loads(text)
    child = os.fork()
    if child == 0:
        connection.close()
        run(message, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(child.to_bytes(HEADER, "big"))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status) % 256
    with suppress(BrokenPipeError):
        connection.sendall(bytes([code]))
    os._exit(0)


def run(message: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run a command with the descriptors, folder and environment of its client."""
    from support import page_commands

    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["page_commands.py", *message["words"]]
    code = 1
    try:
        page_commands.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
