"""A launcher on one host, and the hosts on which it starts nodes over OpenSSH."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.hosts import Host
from support.real_runs import ROOT


@dataclass(frozen=True)
class Cluster:
    """Hosts with OpenSSH, a build, and the folder of its data on the hosts, if any."""

    hosts: Sequence[Host]
    ssh: str
    folder: Path
    build: Path
    data: Path | None

    def launch(
        self, *options: str, file: str = "worker: [host-b, host-c]\nps: host-c\n"
    ) -> subprocess.Popen[str]:
        """Start a launcher on the first host."""
        listed = self.folder / "hosts.yaml"
        listed.write_text(file)
        logs = self.folder / "logs"
        return self.hosts[0].start(
            *(sys.executable, "-m", "placer.command", "launch", str(self.build)),
            *("--hosts", str(listed), "--ssh", self.ssh, "--logs", str(logs)),
            *(() if self.data is None else ("--data", str(self.data))),
            *options,
            env={"PYTHONPATH": str(ROOT)},
        )

    def nodes(self) -> dict[str, int]:
        """Return the process of each node."""
        found: dict[int, str] = {}
        for host in self.hosts[1:]:
            words = ["ip", "netns", "pids", host.namespace]
            listed = subprocess.run(words, check=True, capture_output=True, text=True)
            for pid in listed.stdout.split():
                command = _command_of(pid)
                match = re.search(r" run - --node (\S+)", command)
                if match:
                    found[int(pid)] = match[1]
        # The parent of a node is the process that ssh has started.
        return {node: pid for pid, node in found.items() if parent_of(pid) in found}


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _command_of(pid: str) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:  # it has ended
        return ""
    return text if "python" in text.partition(" ")[0] else ""


def wait_for_step(run: subprocess.Popen[str]) -> None:
    """Wait until a launcher shows a step."""
    assert run.stdout is not None
    while not (line := run.stdout.readline()).startswith("step "):
        assert line, run.communicate()
