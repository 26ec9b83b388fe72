"""Reads a trace that `--trace` wrote."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from placer.errors import PlacerError
from placer.plan.plan import Plan
from placer.report.run_files import run_of_trace
from placer.report.step.trace import (
    OUTSIDE,
    Arrow,
    Label,
    Message,
    Numbers,
    Thread,
    Trace,
)
from placer.system.files.regular import TooLargeError, read_regular

MAX_BYTES: Final = 1 << 28
"""The largest size of a trace, about twice that of the largest trace that a run writes."""
_MAX_TIME: Final = 1e15
"""The largest time in microseconds. Its nanoseconds fit into 64 bits."""


def read_trace(path: Path, plan: Plan) -> Trace:
    """Read a trace of a run of a build.

    Raises:
        PlacerError: if the file cannot be read, is damaged, or is the trace of another
            build.
    """
    return trace_of(path, read_file(path), plan)


class _Args(msgspec.Struct, gc=False):
    name: str = ""
    source: str = ""
    target: str = ""
    nbytes: int = msgspec.field(default=0, name="bytes")
    values: tuple[str, ...] = ()
    edge: int = 0
    step: int = 0


class _Event(msgspec.Struct, gc=False):
    ph: str
    name: str = ""
    cat: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    id: int = 0
    args: _Args = msgspec.field(default_factory=_Args)


class File(msgspec.Struct):
    """The JSON of a trace."""

    traceEvents: list[_Event]  # noqa: N815 - the name in the file
    otherData: dict[str, Any] = {}  # noqa: N815


def read_file(path: Path) -> File:
    """Read the JSON of a trace; raise PlacerError if that fails."""
    try:
        return msgspec.json.decode(read_regular(path, MAX_BYTES), type=File)
    except TooLargeError as error:
        raise PlacerError(
            f"the trace {path} is too large: {error}",
            hint="record fewer steps, such as --trace-steps 100:200",
        ) from None
    except OSError as error:
        raise PlacerError(
            f"cannot read the trace {path}: {error.strerror}",
            hint="name a file that --trace wrote",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None


def trace_of(path: Path, file: File, plan: Plan) -> Trace:
    """Return the content of a trace; see `read_trace`."""
    about = file.otherData
    build = about.get("build")
    if not isinstance(build, str):
        raise PlacerError(
            f"the trace {path} does not name its build",
            hint="record it again with --trace of this version of placer",
        )
    if build != plan.digest:
        if (run := run_of_trace(path, build)) is not None:
            raise PlacerError(
                f"{path} is a trace of another build, which is the build of {run}",
                hint=f"show it with: placer report {run} --trace {path}",
            )
        raise PlacerError(
            f"{path} is a trace of another build",
            hint=f"name the build of {about.get('model')} that was traced, or trace a run"
            f" of {plan.name} with --trace",
        )
    try:
        return _Reader(file).trace()
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> PlacerError:
    return PlacerError(
        f"the trace {path} is damaged: {reason}",
        hint="record it again with --trace",
    )


class _Reader:
    """Sorts the events of a file by thread."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._labels: dict[Label, int] = {}
        self._nodes: dict[int, str] = {}
        self._names: dict[int, tuple[int, str]] = {}
        self._slices: dict[int, list[_Event]] = defaultdict(list)
        self._ends: tuple[dict[int, _Event], dict[int, _Event]] = ({}, {})

    def trace(self) -> Trace:
        """Return the trace; raise ValueError if the events contradict each other."""
        for event in self._file.traceEvents:
            self._sort(event)
        for tid in self._slices:
            if tid not in self._names:
                raise ValueError(f"the thread {tid} has no name")
        threads = {
            tid: self._thread(self._node(pid), name, self._slices.get(tid, []))
            for tid, (pid, name) in self._names.items()
        }
        about = self._file.otherData
        return Trace(
            tuple(self._nodes.values()),
            tuple(threads.values()),
            tuple(self._labels),
            sorted(self._arrows(list(threads)), key=lambda arrow: arrow.received),
            _uncertainty(about),
            _full_in(about),
            str(about.get("model", "")),
            str(about.get("build", "")),
        )

    def _sort(self, event: _Event) -> None:
        if not (abs(event.ts) <= _MAX_TIME and 0 <= event.dur <= _MAX_TIME):
            raise ValueError(f"the time of '{event.name}' is out of range")
        if event.ph == "X":
            self._slices[event.tid].append(event)
        elif event.ph == "s":
            self._ends[0][event.id] = event
        elif event.ph == "f":
            self._ends[1][event.id] = event
        elif event.ph == "M" and event.name == "process_name":
            self._nodes[event.pid] = event.args.name
        elif event.ph == "M" and event.name == "thread_name":
            self._names[event.tid] = event.pid, event.args.name

    def _node(self, pid: int) -> str:
        if pid not in self._nodes:
            raise ValueError(f"the process {pid} has no name")
        return self._nodes[pid]

    def _thread(self, node: str, name: str, events: list[_Event]) -> Thread:
        starts = np.array([_nanoseconds(e.ts) for e in events], np.int64)
        ends = np.array([_nanoseconds(e.ts + e.dur) for e in events], np.int64)
        order = np.lexsort((-ends, starts))  # stable: outer slices come first in a file
        starts, ends = starts[order], ends[order]
        parents = _nest(starts, ends)
        labels, messages = [], {}
        for index, event in enumerate(events[i] for i in order.tolist()):
            label = Label(event.cat, event.name)
            labels.append(self._labels.setdefault(label, len(self._labels)))
            if message := _message(node, event):
                messages[index] = message
        numbers = np.array(labels, np.int64)
        return Thread(node, name, starts, ends, numbers, parents, messages)

    def _arrows(self, threads: list[int]) -> Iterator[Arrow]:
        index = {tid: number for number, tid in enumerate(threads)}
        sent, received = self._ends
        for number, start in sent.items():
            end = received.get(number)
            if end is None:
                continue
            for each in (start, end):
                if each.tid not in index:
                    raise ValueError(f"the thread {each.tid} has no name")
            yield Arrow(
                index[start.tid],
                _nanoseconds(start.ts),
                index[end.tid],
                _nanoseconds(end.ts),
                start.cat == "message",
            )


def _nest(starts: Numbers, ends: Numbers) -> Numbers:
    """Return the slice around each slice. Slices that cross another one are shortened."""
    parents = np.full(len(starts), OUTSIDE, np.int64)
    around: list[tuple[int, int]] = []  # the end and the index of each open slice
    for index, (start, end) in enumerate(
        zip(starts.tolist(), ends.tolist(), strict=True)
    ):
        while around and around[-1][0] <= start:
            around.pop()
        if around:
            limit, parents[index] = around[-1]
            if end > limit:
                ends[index] = end = limit
        around.append((end, index))
    return parents


def _message(node: str, event: _Event) -> Message | None:
    args = event.args
    if args.target:
        source, target, suffix = node, args.target, f" to {args.target}"
    elif args.source:
        source, target, suffix = args.source, node, f" from {args.source}"
    else:
        return None
    values = event.name.removesuffix(suffix)
    return Message(source, target, values, args.nbytes, args.edge, args.step)


def _nanoseconds(micros: float) -> int:
    return round(micros * 1000)


def _uncertainty(about: Mapping[str, Any]) -> dict[str, int]:
    found = about.get("clock uncertainty in microseconds", {})
    if not isinstance(found, dict):
        raise ValueError("the clock uncertainty is not an object")
    for node, micros in found.items():
        if not isinstance(micros, int | float) or not math.isfinite(micros):
            raise ValueError(f"the clock uncertainty of {node} is not a number")
    return {node: _nanoseconds(micros) for node, micros in found.items()}


def _full_in(about: Mapping[str, Any]) -> dict[str, int]:
    found = about.get("slices left out", {})
    if not isinstance(found, dict):
        raise ValueError("the slices left out are not an object")
    steps = {
        node: re.search(r"from step ([0-9]{1,18}) on", str(text))
        for node, text in found.items()
    }
    return {node: int(match[1]) for node, match in steps.items() if match}
