"""The processes of nodes as forks of one that has made their imports."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from placer.launcher import forked_process, forks, node_process
from placer.launcher.forked_process import ForkedProcess, ForkError, ForkServer
from placer.launcher.forks import can_fork, open_fork_server
from placer.runtime.control.events import Event
from placer.runtime.control.options import Options
from placer.runtime.process.interpreter import interpreter
from placer.runtime.signals.interruption import Interruption
from placer.runtime.signals.signals import SignalPipe

PLACER = "placer.command.check"
FACTS = """
import json, os, signal, sys
import numpy
facts = {
    "leads": os.getsid(0) == os.getpid(),
    "shown": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "orig_argv": sys.orig_argv,
    "PLACER_NAME": os.environ["PLACER_NAME"],
    "threads": os.environ.get("OPENBLAS_NUM_THREADS"),
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "files": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "inherited": os.read(int(os.environ["PLACER_FILE"]), 9).decode(),
    "drawn": numpy.random.random(),
}
print(json.dumps(facts))
print("to the log", file=sys.stderr)
os._exit(int(os.environ["PLACER_STATUS"]))
"""
SLEEP = "import signal; print('here', flush=True); signal.pause()"


def environment(**variables: str) -> dict[str, str]:
    """Return that of this process, but for what pytest sets for each test."""
    left = ("PYTEST_CURRENT_TEST", "OPENBLAS_NUM_THREADS")
    return {k: v for k, v in os.environ.items() if k not in left} | variables


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with ForkServer(environment(), [PLACER, "numpy.random"], 1000) as started:
        started.wait_until_ready()
        yield started


def start(
    server: ForkServer,
    folder: Path,
    code: str,
    pass_fds: Sequence[int] = (),
    **variables: str,
) -> ForkedProcess:
    """Let a fork run some code, with its output in the files `out` and `err`."""
    spec = folder / "code.py"
    spec.write_text(code)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return server.start(
            [*interpreter("placer.command"), "check", f"{spec}:build"],
            environment(**variables),
            stdout=out,
            stderr=err,
            pass_fds=pass_fds,
        )


def wait_for_exit(process: ForkedProcess) -> int:
    status = process.wait(60.0)
    assert status is not None
    process.close()
    return status


def facts_of(
    server: ForkServer, folder: Path, node: str, status: int
) -> dict[str, Any]:
    folder.mkdir()
    read, write = os.pipe()
    os.write(write, node.encode())
    variables = {"PLACER_NAME": node, "PLACER_STATUS": str(status)}
    process = start(
        server, folder, FACTS, pass_fds=(read,), PLACER_FILE=str(read), **variables
    )
    os.close(read)
    os.close(write)
    assert wait_for_exit(process) == status, (folder / "err").read_text()
    assert "to the log" in (folder / "err").read_text()
    facts: dict[str, Any] = json.loads((folder / "out").read_text())
    assert facts["inherited"] == node
    assert facts["files"][:3] == [0, 1, 2]
    assert read in facts["files"]
    return facts


def test_a_fork_is_like_a_process_of_its_own(
    server: ForkServer, tmp_path: Path
) -> None:
    one = facts_of(server, tmp_path / "one", "worker:0", 0)
    two = facts_of(server, tmp_path / "two", "worker:1", 3)
    assert (one["PLACER_NAME"], two["PLACER_NAME"]) == ("worker:0", "worker:1")
    assert one["drawn"] != two["drawn"]
    command = [*interpreter("placer.command"), "check", f"{tmp_path}/one/code.py:build"]
    assert one["shown"] == one["orig_argv"] == command
    assert one["leads"]
    assert one["threads"] is None
    assert one["blocked"] == [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
    # The standard ones, the inherited one, that of the listed folder, and the spec's.
    assert len(one["files"]) <= 6


ENDS = """
import atexit, os, sys, types
from placer.system.memory.collection import begin_collection
left = sys.modules["left"] = types.ModuleType("left")
left.file = open(os.environ["PLACER_FILE"], "w")
left.file.write("buffered")
atexit.register(print, "at the exit")
begin_collection()  # as before the first step
left.later = open(os.environ["PLACER_FILE"] + "2", "w")
left.later.write("too")
del left
"""


def test_a_fork_ends_like_a_process_of_its_own(
    server: ForkServer, tmp_path: Path
) -> None:
    process = start(server, tmp_path, ENDS, PLACER_FILE=str(tmp_path / "file"))
    assert wait_for_exit(process) == 2
    assert "code.py has no function 'build'" in (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text() == "at the exit\n"
    assert (tmp_path / "file").read_text() == "buffered"
    assert (tmp_path / "file2").read_text() == "too"


def test_a_signal_that_kills_a_fork_is_its_status(
    server: ForkServer, tmp_path: Path
) -> None:
    process = start(server, tmp_path, SLEEP)
    os.killpg(process.pid, signal.SIGKILL)
    assert wait_for_exit(process) == -signal.SIGKILL
    assert process.lost == ""


def test_forks_end_with_the_server(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, SLEEP)
    os.kill(server.pid, signal.SIGKILL)
    assert wait_for_exit(process) == -signal.SIGKILL
    assert process.lost == "was killed by SIGKILL"


def test_a_number_that_another_process_may_have_is_not_killed(
    server: ForkServer,
) -> None:
    os.kill(server.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        ForkedProcess(other.pid, server).kill()
        other.terminate()
        assert other.wait() == -signal.SIGTERM


def test_a_stopped_server_is_not_waited_for(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(server, tmp_path, SLEEP)
    monkeypatch.setattr(forked_process, "ANSWER_TIMEOUT", 0.1)
    server._connection.settimeout(0.1)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(ForkError, match="is frozen: a signal has stopped it") as error:
        start(server, tmp_path, SLEEP)
    assert error.value.has_ended
    assert wait_for_exit(process) == -signal.SIGKILL


def test_a_stopped_fork_is_not_waited_for(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits until its fork leads a group."""
    server._connection.settimeout(0.1)
    with monkeypatch.context() as patch:
        patch.setattr(
            forked_process, "send", lambda *_: None
        )  # as if it did not answer
        with pytest.raises(ForkError, match="has not answered within") as error:
            start(server, tmp_path, SLEEP)
    assert error.value.has_ended
    assert server.has_ended


def test_a_server_that_is_stopped_while_it_imports_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_process, "FREEZE_CHECK", 0.05)
    monkeypatch.setattr(forked_process, "FREEZE_CHECKS", 2)
    variables = imported("import signal\nsignal.pause()", tmp_path, monkeypatch)
    with ForkServer(variables, ["imported"], 1000) as server:
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(ForkError, match="is frozen") as error:
            server.wait_until_ready()
    assert error.value.has_ended


def test_an_interpreter_may_be_named_in_another_way(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = os.path.split(sys.executable)
    other = os.path.join(folder, "..", os.path.basename(folder), name)
    monkeypatch.setattr(sys, "executable", other)
    process = start(server, tmp_path, "print('here')")
    assert wait_for_exit(process) == 2
    assert "here" in (tmp_path / "out").read_text()
    monkeypatch.setattr(sys, "executable", str(tmp_path / name))
    with pytest.raises(ForkError, match="does not run"):
        start(server, tmp_path, SLEEP)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import threading\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "has 2 threads",
        ),
        ("import jax\njax.devices()", "has a JAX backend"),
        ("FILE = open('/dev/null')", "has opened /dev/null"),
        ("raise ImportError('no such device')", "ImportError: no such device"),
    ],
)
def test_a_process_with_threads_a_backend_or_files_is_not_forked(
    tmp_path: Path, code: str, why: str
) -> None:
    (tmp_path / "imported.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), *sys.path])
    variables = {"PYTHONPATH": path}
    with (
        ForkServer(environment(**variables), [PLACER, "imported"], 1000) as server,
        pytest.raises(ForkError, match=why),
    ):
        server.wait_until_ready()


def test_the_imports_of_nodes_leave_a_process_that_can_be_forked() -> None:
    imports = (*forks._IMPORTS, *forks._UPDATES)
    with ForkServer(environment(), imports, 1000) as server:
        server.wait_until_ready()


@pytest.fixture
def many_files() -> Iterator[None]:
    """So many open files that new descriptors are above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    yield
    for fd in files:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_process_with_many_open_files_starts_and_ends_nodes(tmp_path: Path) -> None:
    with ForkServer(environment(), [PLACER], 1000) as server:
        server.wait_until_ready()
        start(server, tmp_path, SLEEP)
        command = [sys.executable, "-c", "import signal; signal.pause()"]
        node = node_process.start_node(
            "a:0", command, tmp_path / "log", environment(), takes_orders=False
        )
        assert node.pidfd > 1023
        node.close()
        assert not node.running
    reader, writer = os.pipe()
    os.write(writer, bytes([signal.SIGTERM]))
    os.set_blocking(reader, False)
    assert reader > 1023
    assert SignalPipe(reader).next() is signal.SIGTERM
    os.close(reader)
    os.close(writer)


def test_a_variable_that_imports_read_must_be_the_same(
    server: ForkServer, tmp_path: Path
) -> None:
    with pytest.raises(ForkError, match="was started with another JAX_ENABLE_X64"):
        start(server, tmp_path, SLEEP, JAX_ENABLE_X64="1")


@pytest.fixture
def plan() -> Any:
    return SimpleNamespace(processes={})


def imported(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Let fork servers import some code, and return their environment."""
    (folder / "imported.py").write_text(code)
    monkeypatch.setattr(forks, "_imports", lambda plan, starts_again: ("imported",))
    path = os.pathsep.join([str(folder), *sys.path])
    return environment(PYTHONPATH=path)


def test_a_signal_during_the_imports_ends_the_run(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, signal\nos.kill(os.getppid(), signal.SIGINT)\nsignal.pause()"
    variables = imported(code, tmp_path, monkeypatch)
    with (
        pytest.raises(
            KeyboardInterrupt,
            match=r"nothing was saved: the first step had not finished$",
        ),
        open_fork_server(
            plan, [["run"]], variables, print, Interruption(Path("saved"))
        ),
    ):
        pass


def test_without_a_server_there_is_a_warning(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Event] = []
    variables = imported("raise OSError('no disk')", tmp_path, monkeypatch)
    with open_fork_server(
        plan, [["run"]], variables, shown.append, Interruption()
    ) as no:
        assert no is None
    variables["LONG"] = "x" * (1 << 20)
    with open_fork_server(
        plan, [["run"]], variables, shown.append, Interruption()
    ) as no:
        assert no is None
    first, second = map(str, shown)
    assert "each node makes its imports itself: the fork server has ended" in first
    assert "OSError: no disk" in first
    assert "the fork server cannot be started: [Errno 7] Argument list too" in second


@pytest.mark.parametrize(
    ("device", "options", "variables", "forks_them"),
    [
        ("cpu:0", Options(), {}, True),
        ("gpu:0", Options(), {}, False),
        ("gpu:0", Options(emulate=True), {}, True),
        ("cpu:0", Options(), {"PLACER_FORK": "0"}, False),
        ("cpu:0", Options(), {"PYTHONHASHSEED": "random"}, False),
    ],
)
def test_nodes_are_forks_where_that_is_safe_and_not_forbidden(
    device: str,
    options: Options,
    variables: dict[str, str],
    forks_them: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PLACER_FORK", "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    node = SimpleNamespace(computes={device: (device,)})
    settings = SimpleNamespace(emulate=False)
    many: Any = SimpleNamespace(
        settings=settings, processes=dict.fromkeys(range(3), (node,))
    )
    few: Any = SimpleNamespace(
        settings=settings, processes=dict.fromkeys(range(2), (node,))
    )
    assert can_fork(many, options) is forks_them
    assert not can_fork(few, options)
