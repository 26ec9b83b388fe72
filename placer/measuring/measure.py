"""Measures what a spec needs on this machine: pieces of functions, calls, and messages."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

import msgspec

import placer
from placer.channel.ports import free_endpoints
from placer.compiler.graph.model import Model
from placer.compiler.placing.costs import Costs, Machine
from placer.errors import PlacerError, SpecWarning
from placer.measuring.builds import split_build
from placer.measuring.child import Answer, Job, TimedBuild
from placer.measuring.derive import Derivation, Messages
from placer.plan.write import write_build
from placer.runtime.process.environment import python_environment
from placer.runtime.process.interpreter import NODE_VARIABLES, interpreter
from placer.system.cores import usable_cores

FINE_STEPS: Final = 28
COARSE_STEPS: Final = 36
SECONDS: Final = 6.0
"""After this time, the steps of a build end early."""
_ENDS: Final = ("worker:0", "worker:1")


def measure(
    model: Model, groups: Mapping[str, str] = MappingProxyType({}), step_bytes: int = 0
) -> Costs:
    """Time what a model needs on this machine, by CPU time. It reads rows of its data.

    Args:
        model: the model as written.
        groups: the movable group of each forward op by name; an op that is missing is a
            group of its own.
        step_bytes: the memory of a step of the model's largest node.

    Raises:
        PlacerError: a process that measures has failed; the message has its errors.

    Example:
        costs = measure(read_model(Path("digits.yaml"), nodes=None, overrides=None, code=True))
        Path("costs.json").write_bytes(write_costs(costs))
    """
    microbatches = model.settings.train.microbatches
    batch = model.graph.batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # the command has printed them
        fine = split_build(model, batch // microbatches, 1, groups)
        coarse = split_build(model, batch, microbatches, None)
    others = {kind for node in model.graph.cluster.kinds for kind, _ in node.devices}
    device = next(iter(sorted(others - {"cpu"})), "")
    # Beside the spec, to whose folder the paths of its data are relative.
    with TemporaryDirectory(prefix="placer-") as name:
        folders = [Path(name) / "fine", Path(name) / "coarse"]
        for folder, each in zip(folders, (fine, coarse), strict=True):
            write_build(folder, each.compiled.files_in(folder))
        job = Job(
            (
                TimedBuild(str(folders[0]), FINE_STEPS, SECONDS, overheads=True),
                TimedBuild(str(folders[1]), COARSE_STEPS, SECONDS, alternates=True),
            ),
            step_bytes,
            device,
            model.settings.emulate,
        )
        answer = _run(job, Path(name))
    machine = Machine(
        _processor(),
        usable_cores(),
        answer.devices,
        {
            "python": platform.python_version(),
            "placer": placer.__version__,
            **answer.versions,
        },
    )
    fine_times, coarse_times = answer.builds
    return Derivation(
        groups, fine, fine_times, coarse, coarse_times, _messages(), machine
    ).costs()


def _run(job: Job, folder: Path) -> Answer:
    """Run a job in a process of its own."""
    question, answer = folder / "job.json", folder / "answer.json"
    question.write_bytes(msgspec.json.encode(job))
    command = [*interpreter("placer.measuring.child"), str(question), str(answer)]
    _check(_start(command))
    return msgspec.json.decode(answer.read_bytes(), type=Answer)


def _messages() -> list[Messages]:
    """Return the times of messages from both of their ends."""
    addresses = json.dumps(free_endpoints(_ENDS))
    job = f"measure {os.getpid()}"
    module = interpreter("placer.measuring.message_ends")
    ends = [_start([*module, node, addresses, job]) for node in _ENDS]
    return [msgspec.json.decode(_check(each)) for each in ends]


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    environment = {**NODE_VARIABLES, **python_environment()}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe)


def _check(process: subprocess.Popen[bytes]) -> bytes:
    """Wait for a process, and return its output. Raises PlacerError if it has failed."""
    output, errors = process.communicate()
    if process.returncode:
        raise PlacerError(
            f"the measurement has failed: {errors.decode(errors='replace').strip()}"
        )
    return output


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(named, platform.machine()).strip()
