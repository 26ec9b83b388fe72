"""The process from which the nodes of a machine are forked.

It has imported what a node needs, but nothing of the user's, and computes nothing: it has
one thread, and JAX has no backend in it, so a fork of it is like a process that has just
made these imports. A fork becomes a node with a command line, an environment and
descriptors of its own. Its memory is shared with the others until it is written to.

It tells its launcher (`placer.launcher.forked_process`) why it must not be forked, if so,
by {"refused"}, and then obeys it, one message after another:

    {"command", "environment", "targets"} and descriptors  ->  {"pid"} or {"refused"}
    {"wait": pid}                                           ->  {"status"}

It ends with the launcher, and its forks end with it.
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
"""How the process is listed."""
_OWN: Final = "PLACER_"
"""What the variables begin with that nothing reads while it is imported."""


def main(connection: socket.socket, imports: Sequence[str]) -> None:
    """Import modules, and obey the launcher at the other end of a connection until it ends;
    in a fork, run what that has asked for."""
    end_with_parent()
    began = dict(os.environ)
    show_command_line([NAME])
    pause_collection()
    for name in imports:
        import_module(name)
    # The collector of a fork must not write to what it shares with the others.
    gc.freeze()
    send(connection, {"refused": obstacle({connection.fileno()})})
    arguments = _serve(connection, began)
    if arguments is not None:
        _end(_run(arguments))


def _serve(connection: socket.socket, began: Mapping[str, str]) -> list[str] | None:
    """Answer messages until the connection ends, and return None; in a fork, return the
    arguments of its command line. `began` is the environment before the imports."""
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
            # Once this pipe ends, the fork leads a group, which the launcher can kill.
            os.read(ready, 1)
            os.close(ready)
            answer = {"pid": pid}
        for descriptor in descriptors:
            os.close(descriptor)
        send(connection, answer)


def obstacle(known: Iterable[int]) -> str:
    """Return why this process must not be forked, or an empty string: it has threads, a
    backend of JAX, or descriptors besides the standard and the known ones."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    # A backend has threads, so a JAX without this function is recognized by these.
    has_backend = getattr(bridge, "backends_are_initialized", lambda: False)
    if has_backend():
        return "has a backend of JAX"
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads != 1:
        return f"has {threads} threads"
    listed = os.listdir("/proc/self/fd")
    opened = {int(name) for name in listed} - {0, 1, 2, *known}
    for descriptor in sorted(opened):
        with suppress(OSError):  # that of the folder, which is closed by now
            return f"has opened {os.readlink(f'/proc/self/fd/{descriptor}')}"
    return ""


def _difference(
    began: Mapping[str, str], environment: Mapping[str, str], command: Sequence[str]
) -> str:
    """Return why a command cannot be run in a fork, or an empty string."""
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
    # The path of the interpreter may be written in another way. Another environment is
    # another folder, also if its interpreter is the same file.
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
    """Make this fork a process like one that was started with a command line and an
    environment."""
    os.setsid()
    end_with_parent()
    if os.getppid() != server:
        os._exit(1)
    # What imports have set stays, as it would in a process of its own.
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
    """Give descriptors their numbers, and the first one any other, which is returned."""
    # First away from all of these numbers, one of which may be that of another.
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
    """Run the command line of a node, and return its status."""
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
    """End this fork as an interpreter ends, but without freeing objects: it would copy all
    that it shares with the others."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for file in open_files():  # none was open before the fork
        with suppress(Exception):  # it is closed, or cannot be written
            file.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 255)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        main(launcher, sys.argv[2].split(","))
