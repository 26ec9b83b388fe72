"""A real Slurm on this machine: a controller and four daemons, as on four machines.

`python -m support.slurm FOLDER COMMAND…` (in `tests`) runs a command with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from placer.channel.ports import free_endpoints
from placer.launcher.engines.options import read_engine_options
from placer.launcher.engines.slurm import OPTIONS

TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
MACHINES = ("n1", "n2", "n3", "n4")
needs_slurm = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)) and "PLACER_REQUIRE_ENGINES" not in os.environ,
    reason="needs Slurm: apt-get install slurmctld slurmd slurm-client",
)
_START = 30.0
"""Seconds within which Slurm must be there."""

CONFIGURATION = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,defer_batch=0
KillWait=5
MinJobAge=60
{machines}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=debug Nodes=n[1-4] Default=YES State=UP
PartitionName=urgent Nodes=n[1-4] PriorityTier=2 State=UP
"""
"""A job waits for `cred_expire` seconds before it starts again. It cannot be shorter."""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start Slurm with its files in a folder; yield the environment of its commands."""
    host = socket.gethostname()
    ports = [
        address.rpartition(":")[2]
        for address in free_endpoints(["controller", *MACHINES]).values()
    ]
    machines = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8"
        " RealMemory=16000"
        for name, port in zip(MACHINES, ports[1:], strict=True)
    )
    (folder / "state").mkdir(parents=True, exist_ok=True)
    configuration = folder / "slurm.conf"
    text = CONFIGURATION.format(
        host=host, controller=ports[0], folder=folder, machines=machines
    )
    configuration.write_text(text)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    commands = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", n] for n in MACHINES)]
    with ExitStack() as exits:
        for command in commands:
            daemon = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            exits.callback(_end, daemon)
        _wait_until_idle(environment, folder)
        try:
            yield environment
        finally:
            subprocess.run(["scancel", "--user=root"], env=environment, timeout=30)
            with suppress(AssertionError):
                wait_for_end(environment)


@contextmanager
def scheduling(environment: dict[str, str]) -> Iterator[None]:
    """Let Slurm look each second whether a job that was started again can run. Without any other
    change in the cluster, it looks after 100 s."""
    ended = threading.Event()
    update = ["scontrol", "update", "PartitionName=debug", "State=UP"]

    def run() -> None:
        while not ended.wait(1.0):
            subprocess.run(update, env=environment, check=True)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    until = time.monotonic() + _START
    while time.monotonic() < until:
        found = subprocess.run(
            ["sinfo", "--noheader", "--format=%D %t"],
            env=environment,
            capture_output=True,
            text=True,
        )
        if found.stdout.strip() == "4 idle":
            return
        time.sleep(0.1)
    raise AssertionError((folder / "slurmctld.log").read_text()[-2000:])


def slurm_options(**given: str) -> dict[str, Any]:
    """Return the options of a job that needs no Python but that of the machine."""
    return read_engine_options("slurm", OPTIONS, {"python": "sh", **given})


def jobs(environment: dict[str, str]) -> list[str]:
    """Return the numbers of the jobs that are not over, with their states."""
    found = subprocess.run(
        ["squeue", "--noheader", "--format=%i %T"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout.split("\n")[:-1]


def wait_for_end(environment: dict[str, str], seconds: float = 20.0) -> None:
    """Wait until no job is left."""
    until = time.monotonic() + seconds
    while left := jobs(environment):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def machine_of(group: int, environment: dict[str, str]) -> str:
    """Return the machine of a group of the only job."""
    words = ["squeue", "--noheader", "--format=%i %N"]
    told = subprocess.check_output(words, env=environment, text=True)
    lines = (line.split() for line in told.splitlines())
    return next(name for part, name in lines if part.endswith(f"+{group}"))


def end_machine(machine: str, environment: dict[str, str]) -> None:
    """End all processes of a machine at once, and let Slurm notice it."""
    folder = Path(environment["SLURM_CONF"]).parent
    daemon = int((folder / f"{machine}.pid").read_text())
    tasks = [*_tasks(machine, environment["SLURM_CONF"])]
    steps = {
        parent for pid in tasks if _words(parent := _parent(pid))[:1] == ["slurmstepd:"]
    }
    for pid in (daemon, *steps, *tasks):  # a step reports the end of its tasks
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    update = ["scontrol", "update", f"NodeName={machine}", "State=DOWN", "Reason=lost"]
    subprocess.run(update, env=environment, check=True)


def _tasks(machine: str, configuration: str) -> Iterator[int]:
    named = {f"SLURMD_NODENAME={machine}", f"SLURM_CONF={configuration}"}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                found = (entry / "environ").read_bytes().decode(errors="replace")
                if named <= {*found.split("\0")}:
                    yield int(entry.name)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()


@contextmanager
def running_machine(machine: str, environment: dict[str, str]) -> Iterator[None]:
    """Start a machine again that `end_machine` has ended, until the end of the context."""
    command = ["slurmd", "-D", "-N", machine]
    with subprocess.Popen(command, env=environment, start_new_session=True) as daemon:
        try:
            _wait_until_idle(environment, Path(environment["SLURM_CONF"]).parent)
            yield
        finally:
            _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with slurm(Path(sys.argv[1]).resolve()) as variables:
        subprocess.run(sys.argv[2:] or ["bash"], env=variables)
