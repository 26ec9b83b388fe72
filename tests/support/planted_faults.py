"""Makes the nodes of a process fail at named points of a run.

Programs of builds by `support.faulty_runs` run this file, with the name `FOLDER`. It reads
the faults from `FOLDER/faults.json`, and adds each point that a node reaches to `FOLDER/points`.
It is run in the processes of nodes, where the package `support` cannot be imported.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placer.runtime.control.execution import Execution
from placer.runtime.node.node import Node
from placer.runtime.training_loop import executor
from placer.system.reentry import NODE_VARIABLE

FOLDER = Path(globals()["FOLDER"])
PHASES = ("begin_attempt", "resume", "gather_parameters", "finish", "save", "settle")
"""Functions that the executor calls in this order."""

_faults = json.loads((FOLDER / "faults.json").read_text())
_kept: list[Any] = []
_before_operations = runpy.run_path(str(Path(__file__).with_name("file_operations.py")))


def reach(node: str, point: str) -> float:
    """Note a point that a node has reached, and do the faults that are planted there.
    Return a factor for the arguments of the call."""
    factor = 1.0
    for fault in _faults:
        is_here = fault["node"] == node and point.startswith(fault["point"])
        if is_here and _take(fault):
            act, _, argument = fault["act"].partition(" ")
            if act == "spoil":
                factor = float(argument)
            else:
                _do(fault["act"], fault["to"] or [node])
    with (FOLDER / "points").open("a") as file:
        file.write(f"{node}\t{point}\n")
    return factor


def _take(fault: dict[str, Any]) -> bool:
    """Return whether a fault is to happen: once in a run, unless it is permanent."""
    try:
        (FOLDER / f"done-{fault['id']}").touch(exist_ok=fault["always"])
    except FileExistsError:
        return False
    return True


def _do(act: str, nodes: list[str]) -> None:
    """Do a fault to nodes. This process comes last."""
    kind, _, argument = act.partition(" ")
    if kind == "raise":
        raise ValueError(argument)
    pids = sorted((_pid_of(node) for node in nodes), key=lambda pid: pid == os.getpid())
    if kind == "freeze":
        words = " ".join(map(str, pids))
        if argument:
            subprocess.Popen(["sh", "-c", f"sleep {argument}; kill -CONT {words}"])
    number = signal.SIGSTOP if kind == "freeze" else signal.Signals[kind]
    for pid in pids:
        os.kill(pid, number)


def _pid_of(name: str) -> int:
    """Return the id of the process of a node, or of another process of the run."""
    if name in ("fork server", "guard"):
        return os.getppid()
    if name == "launcher":
        return int((FOLDER / "launcher").read_text())
    return int((FOLDER / f"pid-{name.partition('.')[0]}").read_text())


class _Calls(threading.local):
    """The calls of a node's thread at one position."""

    where = ""
    number = 0


_calls = _Calls()


def _watch_calls(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(node: Node, *arguments: Any, **options: Any) -> Any:
        where = node.position.where
        if where != _calls.where:
            _calls.where, _calls.number = where, 0
        _calls.number += 1
        if where.startswith(("step", "evaluation")):
            point = f"{where}, call {_calls.number}: {name}"
            if (factor := reach(node.name, point)) != 1.0:
                options = {key: factor * value for key, value in options.items()}
        return method(node, *arguments, **options)

    return call


def _watch_phase(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        reach(_node(arguments), f"before {name}")
        result = function(*arguments, **options)
        reach(_node(arguments), f"after {name}")
        return result

    return call


def _node(arguments: tuple[Any, ...]) -> str:
    found = (each.me.name for each in arguments if isinstance(each, Execution))
    return next(found, os.environ[NODE_VARIABLE])


def _watch_states() -> None:
    report = Execution.report_state

    def report_state(
        execution: Execution, state: str | None = None, *, pass_end: int | None = None
    ) -> None:
        report(execution, state, pass_end=pass_end)
        if state is not None:
            reach(execution.me.name, f"state {state}")

    Execution.report_state = report_state  # type: ignore[method-assign]


def _watch_files() -> None:
    counts: Counter[str] = Counter()
    step = 0

    def operation(name: str, path: Path) -> None:
        nonlocal step
        file = path.relative_to(FOLDER / "files").as_posix()
        begins = re.fullmatch(r"checkpoints/\.step-(\d+)\.\w+\.tmp", file)
        if begins and name == "mkdir":
            step = int(begins[1])
            counts.clear()
        file = re.sub(r"(?<=step-)\d+|[0-9a-f]{8,}|#\d+", "N", file)
        counts[f"{name} {file}"] += 1
        count = counts[f"{name} {file}"]
        point = f"checkpoint {step}: {name} {file} {count}"
        reach(os.environ[NODE_VARIABLE], point)

    observed = _before_operations["before_operations"](FOLDER / "files", operation)
    observed.__enter__()
    _kept.append(observed)  # its end would end the observation


def plant() -> None:
    """Watch the points of this process, once."""
    (FOLDER / f"pid-{os.environ[NODE_VARIABLE]}").write_text(str(os.getpid()))
    reach(os.environ[NODE_VARIABLE], "program")
    for name, method in inspect.getmembers(Node, inspect.isfunction):
        if not name.startswith("_"):
            setattr(Node, name, _watch_calls(name, method))
    for name in PHASES:
        setattr(executor, name, _watch_phase(name, getattr(executor, name)))
    _watch_states()
    _watch_files()


if not hasattr(sys, "_planted"):  # another program of this process
    sys._planted = True  # type: ignore[attr-defined]
    plant()
