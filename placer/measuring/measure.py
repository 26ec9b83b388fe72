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
from placer.compiler.driver import compile_in_memory
from placer.compiler.graph.model import Model
from placer.compiler.placing.costs import Costs, Machine
from placer.errors import PlacerError, SpecWarning
from placer.measuring.builds import split_build
from placer.measuring.child import Answer, Job, TimedBuild
from placer.measuring.derive import Derivation, Messages
from placer.place.node_kinds import CPU
from placer.plan.write import write_build
from placer.runtime.process.environment import python_environment
from placer.runtime.process.interpreter import NODE_VARIABLES, interpreter
from placer.system.cores import usable_cores

FINE_STEPS: Final = 28
COARSE_STEPS: Final = 36
SECONDS: Final = 6.0
"""After this time, the steps of a build end early."""
_ENDS: Final = ("worker:0", "worker:1")


def measure(model: Model, groups: Mapping[str, str] = MappingProxyType({})) -> Costs:
    """Time what a model needs on this machine, by CPU time. It reads rows of its data.

    A device that is no processor is timed by wall clock, unless it is emulated.

    Args:
        model: the model as written.
        groups: the movable group of each forward op by name; an op that is missing is a
            group of its own.

    Raises:
        PlacerError: a process that measures has failed; the message has its errors.

    Example:
        model = read_model(Path("digits.yaml"), nodes=None, overrides=None, code=True)
        Path("costs.json").write_bytes(write_costs(measure(model)))
    """
    parts, batch = model.settings.train.microbatches, model.graph.batch
    device = _other_device(model)
    emulated = model.settings.emulate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecWarning)  # the command has printed them
        written = compile_in_memory(model).plan
        builds = [
            split_build(model, batch // parts, 1, groups),
            split_build(model, batch, parts, None),
        ]
        if device and not emulated:
            builds.append(split_build(model, batch // parts, 1, groups, device))
    with TemporaryDirectory(prefix="placer-") as name:
        folders = [str(Path(name) / str(number)) for number in range(len(builds))]
        for folder, each in zip(folders, builds, strict=True):
            write_build(Path(folder), each.compiled.files_in(Path(folder)))
        first, second, *others = folders
        timed = (
            TimedBuild(first, FINE_STEPS, SECONDS, overheads=True),
            TimedBuild(second, COARSE_STEPS, SECONDS, alternates=True),
            *(TimedBuild(each, FINE_STEPS, SECONDS, by_wall=True) for each in others),
        )
        nbytes = max(node.table_bytes + node.activation_bytes for node in written.nodes)
        answer = _run(Job(timed, nbytes, device, emulated), Path(name))
    versions = {"python": platform.python_version(), "placer": placer.__version__}
    machine = Machine(
        _processor(), usable_cores(), answer.devices, versions | answer.versions
    )
    fine, coarse, *elsewhere = zip(builds, answer.builds, strict=True)
    return Derivation(
        groups, *fine, *coarse, _messages(), machine, next(iter(elsewhere), None)
    ).costs()


def _other_device(model: Model) -> str:
    """Return the first kind of device of the cluster that is no processor, or nothing."""
    kinds = {kind for node in model.graph.cluster.kinds for kind, _ in node.devices}
    return min(kinds - {CPU}, default="")


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
