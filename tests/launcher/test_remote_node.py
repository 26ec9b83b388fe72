"""A node of a launcher on another machine ends as the launcher, and reports how it
ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.marks import slow_but
from support.real_runs import compile_small

from placer.channel.keys import new_key
from placer.errors import PlacerError
from placer.launcher import predecessor
from placer.launcher.checks import check_launch
from placer.launcher.delivery import write_delivery
from placer.launcher.remote import Hosts, remote_command
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options

END = 20.0
NODE = """\
import os, signal, sys, threading
from placer.channel.keys import find_key
from placer.launcher.remote_node import become_node
threads = threading.active_count()
node = become_node(*sys.argv[1:])
assert threads == 1 and os.getsid(0) == os.getpid()
print("printed by the node", find_key(None), flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
os.write(node.report_fd, f"{os.getpid()} {node.build}\\n".encode())
"""


@contextmanager
def node_of(
    tmp_path: Path, then: str, *place: str
) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """Start a node that does `then`, of a run with the name and id in `place`; yield its
    first process, the node's process id, and its log so far."""
    build = compile_small(tmp_path, workers=1)
    key = new_key()
    process = subprocess.Popen(
        [sys.executable, "-c", NODE + then, *place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PLACER_CACHE": str(tmp_path / "cache")},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdin.write(write_delivery(build, read_plan(build), key))
        process.stdin.flush()
        log = process.stderr.readline().decode()
        assert key.secret.hex() not in log
        number, folder = process.stdout.readline().decode().split()
        assert read_plan(Path(folder)) == read_plan(build)
        yield process, int(number), log


WAIT = "threading.Event().wait()"


def test_what_a_node_prints_goes_to_its_log(tmp_path):
    with node_of(tmp_path, "") as (process, _, log):
        assert log.startswith("printed by the node RunKey(")
        assert process.wait(END) == 0


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    ],
)
def test_the_status_says_how_a_node_has_ended(tmp_path, then, status):
    with node_of(tmp_path, then) as (process, _, _):
        assert process.wait(END) == status


def test_a_stopped_node_ends_with_standard_input(tmp_path):
    with node_of(tmp_path, WAIT) as (process, node, _):
        os.kill(node, signal.SIGSTOP)
        end = os.pidfd_open(node)
        process.stdin.close()
        assert select.select([end], [], [], END)[0], "the node still runs"
        os.close(end)
        assert process.wait(END) == 128 + signal.SIGKILL


def test_signals_are_passed_on_to_the_node(tmp_path):
    with node_of(tmp_path, WAIT) as (process, _, _):
        process.terminate()
        assert process.wait(END) == 128 + signal.SIGTERM


@pytest.mark.parametrize("frozen", slow_but(["both"], ["", "guard", "node", "both"]))
def test_a_newcomer_ends_the_earlier_process_of_its_node(tmp_path, frozen):
    """On a machine that was cut off, standard input stays open."""
    place = ("ps:0", f"run {os.getpid()}")
    other = ("ps:1", place[1])
    with (
        node_of(tmp_path, WAIT, *place) as (earlier, node, _),
        node_of(tmp_path, WAIT, *other) as (unrelated, _, _),
    ):
        end = os.pidfd_open(node)
        if frozen in ("guard", "both"):
            earlier.send_signal(signal.SIGSTOP)
        if frozen in ("node", "both"):
            os.kill(node, signal.SIGSTOP)
        with node_of(tmp_path, "", *place) as (newcomer, _, _):
            assert select.select([end], [], [], 0)[0], "both run"
            assert newcomer.wait(END) == 0
        os.close(end)
        assert earlier.wait(END) == 128 + signal.SIGKILL
        assert unrelated.poll() is None
        unrelated.terminate()


def test_an_earlier_process_that_is_stuck_is_killed(monkeypatch):
    monkeypatch.setattr(predecessor, "GRACE", 0.1)
    code = """\
import os, signal, sys
from placer.launcher.predecessor import take_place
place = take_place("run", "ps:0")
print(os.getpid(), flush=True)
signal.pause()
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as stuck:
        assert stuck.stdout is not None
        stuck.stdout.readline()
        predecessor.take_place("run", "ps:0").close()
        assert stuck.wait(END) == -signal.SIGKILL


def test_orders_come_after_the_build(tmp_path):
    then = "assert os.read(node.order_fd, 10) == b'stop' and not sys.stdin.read()"
    with node_of(tmp_path, then) as (process, _, _):
        process.stdin.write(b"stop")
        process.stdin.flush()
        assert process.wait(END) == 0


def test_the_command_of_a_node_has_no_secret_and_is_quoted(tmp_path):
    command = remote_command(
        "worker:1",
        {"worker:0": "host-a:1", "worker:1": "[fd00::2]:2"},
        Options(
            steps=3,
            key=tmp_path / "run.key",
            save_params=Path("/data/it's.safetensors"),
        ),
        Hosts(Path("hosts.yaml"), python="/opt/venv/bin/python", data=Path("/data")),
    )
    assert command == (
        "exec env PYTHONHASHSEED=0 /opt/venv/bin/python -P -u -X faulthandler"
        " -m placer.command run - --node worker:1"
        " --endpoints 'worker:0=host-a:1,worker:1=[fd00::2]:2' --steps=3"
        """ '--save-params=/data/it'"'"'s.safetensors' --data /data"""
    )


def test_a_relative_path_of_other_machines_is_refused(tmp_path):
    build = compile_small(tmp_path, workers=1)
    (tmp_path / "hosts.yaml").write_text("worker: host-a\nps: host-b\n")
    hosts = Hosts(tmp_path / "hosts.yaml")
    with pytest.raises(
        PlacerError, match=r"^--save-params 'p.safetensors' is a relative"
    ):
        check_launch(build, Options(save_params="p.safetensors"), machines=hosts)
    check_launch(build, Options(save_params="/no/p.safetensors"), machines=hosts)
    with pytest.raises(PlacerError, match=r"^--data 'rows' is a relative"):
        check_launch(build, Options(), machines=replace(hosts, data=Path("rows")))
    with pytest.raises(PlacerError, match="the folder '/no' does not exist"):
        check_launch(build, Options(save_params="/no/p.safetensors"))


def test_spare_machines_without_restarts_are_refused(tmp_path):
    build = compile_small(tmp_path, workers=1)
    file = tmp_path / "hosts.yaml"
    file.write_text("worker: host-a\nps: host-b\nspare: host-c\n")
    with pytest.raises(PlacerError, match="'spare' has no effect without 'restarts'"):
        check_launch(build, Options(), machines=Hosts(file))
    checkpoint = Path("/no/saved")
    check_launch(
        build, Options(restarts=1, checkpoint=checkpoint), machines=Hosts(file)
    )
