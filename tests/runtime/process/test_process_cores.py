"""Many processes of a run on one machine keep to a core each."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.real_runs import compile_small

from placer.runtime.process import entry_point
from placer.runtime.process.cores import divide_cores

WORKERS = {f"worker:{i}": 100 for i in range(6)}
SERVERS = {f"ps:{i}": 0 for i in range(4)}


def test_processes_are_dealt_to_cores_by_what_they_compute() -> None:
    numbers = divide_cores(WORKERS | SERVERS, 2)
    for kind in (WORKERS, SERVERS):
        assert [numbers[name] for name in kind] == [i % 2 for i in range(len(kind))]


@pytest.mark.parametrize(
    ("flops", "cores"),
    [
        (WORKERS | SERVERS, 1),
        (WORKERS | SERVERS, 3),
        ({f"worker:{i}": 100 for i in range(9)}, 2),
        (WORKERS | SERVERS | {"worker:0": 300}, 2),
    ],
    ids=["one core", "few for each core", "an odd number", "one computes more"],
)
def test_cores_are_not_divided_where_that_could_be_uneven(
    flops: dict[str, int], cores: int
) -> None:
    assert divide_cores(flops, cores) == {}


TAKE = """
import json, os
from types import SimpleNamespace
from placer.system.cores import fix_threads, xla_threads
from placer.runtime.process.cores import MANY, take_core

first, second = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, {first, second})
fix_threads()
names = [f"worker:{i}" for i in range(2 * MANY)]
plan = SimpleNamespace(processes={name: (SimpleNamespace(flops=9),) for name in names})
addresses = {name: "a:1" for name in names} | {"worker:1": "b:1"}
take_core(plan, "worker:0", addresses)
few = len(os.sched_getaffinity(0))
take_core(plan, "worker:0", addresses | {"worker:1": "a:2"})
print(json.dumps([few, len(os.sched_getaffinity(0)), xla_threads()]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_keeps_to_a_core_with_the_threads_of_all() -> None:
    """Sums in XLA depend on the number of threads. Processes elsewhere do not count."""
    done = subprocess.run(
        [sys.executable, "-c", TAKE], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == [2, 1, 2]


class TookCoreError(Exception):
    pass


class KeptCoresError(Exception):
    pass


@pytest.mark.parametrize(
    ("alone", "expected"), [(False, TookCoreError), (True, KeptCoresError)]
)
def test_a_node_of_an_engine_keeps_the_cores_that_this_gave_it(
    alone, expected, tmp_path, monkeypatch
):
    """Slurm gives each task cores of its own, and all tasks of a machine share its name."""

    def take_core(*_: object) -> None:
        raise TookCoreError

    def take_gpus(*_: object, **__: object) -> None:
        raise KeptCoresError

    for name in ("fix_threads", "keep_memory"):
        monkeypatch.setattr(entry_point, name, lambda *_: None)
    monkeypatch.setattr(entry_point, "take_core", take_core)
    monkeypatch.setattr(entry_point, "take_gpus", take_gpus)
    build = compile_small(tmp_path)
    with pytest.raises(expected):
        entry_point.run(build, "worker:0", report_fd=2, alone=alone)
