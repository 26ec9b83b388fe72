"""The process from which the nodes on a machine are forked.

It imports the modules that nodes need, but no module of the user, and computes nothing.
It has one thread and no JAX backend, so a fork is like a new process that has just made
these imports. A fork becomes a node with its own command line, environment and
descriptors. Forks share memory until they write to it.

First it sends its launcher (`placer.launcher.forked_process`) {"refused"}: the reason why
it must not be forked, or an empty text. Then it answers one message after another:

    {"command", "environment", "targets"} and descriptors  ->  {"pid"} or {"refused"}
    {"wait": pid}                                           ->  {"status"}

When the launcher ends, the server and its forks end as well.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import os
import runpy
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

from placer.launcher.command_line import show_command_line
from placer.launcher.fork_messages import receive, send
from placer.launcher.parent import end_with_parent
from placer.runtime.process.interpreter import COMMAND, interpreter
from placer.system.blas import VARIABLE, set_blas_threads
from placer.system.cores import usable_cores
from placer.system.memory.collection import open_files, pause_collection

NAME: Final = "placer-fork-server"
"""The name of the process in `ps`."""
_OWN: Final = "PLACER_"
"""Prefix of the environment variables that no import reads."""


def main(connection: socket.socket, imports: Sequence[str]) -> None:
    """Import modules and serve the launcher until the connection ends. In a fork, run
    the requested command."""
    end_with_parent()
    began = dict(os.environ)
    show_command_line([NAME])
    pause_collection()
    for name in imports:
        import_module(name)
    # The garbage collector of a fork must not write to the shared memory.
    gc.freeze()
    send(connection, {"refused": obstacle({connection.fileno()})})
    arguments = _serve(connection, began)
    if arguments is not None:
        _end(_run(arguments))


def _serve(connection: socket.socket, began: Mapping[str, str]) -> list[str] | None:
    """Answer messages; return the arguments of the command line in a fork, None at the
    end."""
    while True:
        try:
            message, descriptors = receive(connection)
        except (EOFError, ConnectionResetError):
            return None
        if "wait" in message:
            _, status = os.waitpid(message["wait"], 0)
            send(connection, {"status": os.waitstatus_to_exitcode(status)})
            continue
        command, environment = message["command"], message["environment"]
        refused = obstacle({connection.fileno(), *descriptors}) or _difference(
            began, environment, command
        )
        if refused:
            answer: dict[str, Any] = {"refused": refused}
        else:
            server = os.getpid()
            ready, mine = os.pipe()
            if not (pid := os.fork()):
                os.close(ready)
                connection.close()
                placed = _place([mine, *descriptors], [-1, *message["targets"]])
                _become(command, began, environment, server)
                os.close(placed)
                return command[len(interpreter()) :]  # type: ignore[no-any-return]
            os.close(mine)
            # When this pipe ends, the fork leads a process group that the launcher can
            # kill.
            os.read(ready, 1)
            os.close(ready)
            answer = {"pid": pid}
        for descriptor in descriptors:
            os.close(descriptor)
        send(connection, answer)


def obstacle(known: Iterable[int]) -> str:
    """Return the reason why this process must not be forked, or "". It must not have
    threads, a JAX backend, or unknown descriptors."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    # A JAX without this function is recognized by the threads of its backend.
    has_backend = getattr(bridge, "backends_are_initialized", lambda: False)
    if has_backend():
        return "has a JAX backend"
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads != 1:
        return f"has {threads} threads"
    listed = os.listdir("/proc/self/fd")
    opened = {int(name) for name in listed} - {0, 1, 2, *known}
    for descriptor in sorted(opened):
        with suppress(OSError):
            # The list includes the descriptor of /proc/self/fd, which is closed now.
            return f"has opened {os.readlink(f'/proc/self/fd/{descriptor}')}"
    return ""


def _difference(
    began: Mapping[str, str], environment: Mapping[str, str], command: Sequence[str]
) -> str:
    """Return the reason why a command cannot run in a fork, or ""."""
    changed = {
        name
        for name in began.keys() | environment.keys()
        if began.get(name) != environment.get(name)
        and name != VARIABLE
        and not name.startswith(_OWN)
    }
    if changed:
        return f"was started with another {', '.join(sorted(changed))}"
    python, *words = interpreter()
    # The path of the same interpreter can be written in several ways. Another folder is
    # another environment, even if its interpreter is the same file.
    folders = os.path.dirname(command[0]), os.path.dirname(python)
    is_same = folders[0] == folders[1] or os.path.samefile(*folders)
    if not is_same or list(command[1 : 1 + len(words)]) != words:
        return f"does not run `{' '.join(command)}`"
    return ""


def _become(
    command: list[str],
    began: Mapping[str, str],
    environment: Mapping[str, str],
    server: int,
) -> None:
    """Give this fork the command line and environment of a newly started process."""
    os.setsid()
    end_with_parent()
    if os.getppid() != server:
        os._exit(1)
    # Variables that imports have set stay, as in a new process.
    for name in began.keys() - environment.keys():
        os.environ.pop(name, None)
    for name, value in environment.items():
        if began.get(name) != value:
            os.environ[name] = value
    sys.orig_argv[:] = command
    show_command_line(command)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    text = environment.get(VARIABLE, "")
    set_blas_threads(int(text) if text.isdecimal() and int(text) else usable_cores())


def _place(descriptors: Sequence[int], targets: Sequence[int]) -> int:
    """Move descriptors to their target numbers; return the first, which has no target."""
    # First move all of them away from the target numbers, because a target may be in use.
    above = max(*targets, 2) + 1
    kept, *moved = [
        fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors
    ]
    for each in descriptors:
        os.close(each)
    for each, target in zip(moved, targets[1:], strict=True):
        os.dup2(each, target)
        os.close(each)
    return kept


def _run(arguments: Sequence[str]) -> int:
    sys.argv = [COMMAND, *arguments]
    try:
        runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End this fork without freeing objects, because that would copy the shared memory."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for file in open_files():  # The server had no open files before the fork.
        with suppress(Exception):  # The file is closed or cannot be written.
            file.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 255)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        main(launcher, sys.argv[2].split(","))
