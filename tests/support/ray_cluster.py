"""A real Ray on this machine: two raylets, as on two machines.

`python -m support.ray_cluster` (in `tests`) starts it, prints its address, and ends it at
the end of standard input.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None and "PLACER_REQUIRE_ENGINES" not in os.environ,
    reason="needs Ray: pip install '.[ray]'",
)
CPUS = 2
"""The CPUs of each raylet, by default."""
_MARK = "PLACER_TEST_CLUSTER"
"""A variable of all processes of a cluster."""
_GROUPS = """\
import ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
table = ray.util.placement_group_table().values()
print([group["state"] for group in table if group["state"] != "REMOVED"])
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its address, and what marks its processes."""

    address: str
    mark: str

    def nodes(self) -> dict[str, int]:
        """Return the processes of the nodes of all jobs, by the names of the nodes; not their
        guards."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            is_ours = f"{_MARK}={self.mark}".encode() in variables
            has_guard = any(word.startswith(b"--restarts=") for word in words)
            if has_guard and b"--guard-fd" not in words:
                continue
            if is_ours and b"placer.command" in words and b"--node" in words:
                name = words[words.index(b"--node") + 1].decode()
                found[name] = int(entry.name)
        return found

    def head(self) -> int:
        """Return the process of the head, which Ray calls GCS."""
        return self._process(lambda words: words[0].endswith(b"gcs_server"))

    def machine(self) -> int:
        """Return the process of the machine that is not the head, which Ray calls raylet."""
        return self._process(
            lambda words: words[0].endswith(b"raylet") and b"--head" not in words
        )

    def _process(self, is_it: Callable[[list[bytes]], bool]) -> int:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or not self._is_marked(int(entry.name)):
                continue
            if is_it((entry / "cmdline").read_bytes().split(b"\0")):
                return int(entry.name)
        raise AssertionError("the cluster has no such process")

    def actors(self) -> list[int]:
        """Return the processes of all actors that run."""
        names = {}
        parents = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                names[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat[1])
        return [
            process
            for process, name in names.items()
            if name.startswith(b"ray::RayNode") and self._is_marked(parents[process])
        ]

    def _is_marked(self, process: int) -> bool:
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"{_MARK}={self.mark}".encode() in variables

    def placement_groups(self) -> str:
        """Return the states of the placement groups that are there."""
        done = subprocess.run(
            [sys.executable, "-c", _GROUPS, self.address],
            check=True,
            capture_output=True,
            text=True,
            env=_environment(self.mark),
        )
        return done.stdout.strip()


def _environment(folder: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return {
        **kept,
        _MARK: folder,
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Workers start when they are needed.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
    }


@contextmanager
def ray_cluster(cpus: int = CPUS) -> Iterator[Cluster]:
    """Start a cluster and yield it; all of its processes end with this process."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets have short paths
    log = Path(folder, "cluster.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.ray_cluster", str(cpus)],
            cwd=Path(__file__).parents[1],
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, log.read_text()
        yield Cluster(address, folder)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def main(cpus: int) -> None:
    from ray.cluster_utils import Cluster as RayCluster

    each = {"num_cpus": cpus, "object_store_memory": 80 << 20, "memory": 4 << 30}
    cluster = RayCluster(
        initialize_head=True,
        head_node_args={
            **each,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
        },
    )
    cluster.add_node(**each)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CPUS)
