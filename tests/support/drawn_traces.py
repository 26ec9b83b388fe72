"""Traces with a known content, written as text: slices and arrows in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placer.plan.plan import Plan
from placer.report.step.trace import Trace
from placer.report.step.trace_file import read_trace

PROGRAM = "program"


@dataclass
class DrawnTrace:
    """The events of a trace. Each thread keeps the times of a separate clock.

    Attributes:
        shift: for each node, the milliseconds by which its clock is wrong.
    """

    nodes: Sequence[str] = ("worker:0", "worker:1", "ps:0")
    shift: dict[str, float] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    slices: list[dict[str, Any]] = field(default_factory=list)
    arrows: list[dict[str, Any]] = field(default_factory=list)
    threads: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(
        self,
        where: str | tuple[str, str],
        category: str,
        name: str,
        start: float,
        end: float,
        **args: Any,
    ) -> None:
        """Add a slice on the program of a node, or on another thread of it."""
        place = self._place(where)
        pid, tid = self._numbers(place)
        self.slices.append(
            {
                "ph": "X",
                "name": name,
                "cat": category,
                "pid": pid,
                "tid": tid,
                "ts": self._micros(place[0], start),
                "dur": round(1000 * (end - start), 3),
                **({"args": args} if args else {}),
            }
        )

    def send(
        self,
        source: str | tuple[str, str],
        target: str | tuple[str, str],
        value: str,
        sent: tuple[float, float],
        received: tuple[float, float],
        nbytes: int = 1000,
    ) -> None:
        """Add a message with its sending slice, its receiving slice and their arrow."""
        sender, receiver = self._place(source), self._place(target)
        self.add(
            source, "send", f"{value} to {receiver[0]}", *sent,
            target=receiver[0], edge=1, step=1, microbatch=0, bytes=nbytes, values=[value],
        )  # fmt: skip
        self.add(
            target, "receive", f"{value} from {sender[0]}", *received,
            source=sender[0], edge=1, step=1, microbatch=0, bytes=nbytes, values=[value],
        )  # fmt: skip
        self._arrow("message", sender, sent[0], receiver, received[0])

    def hand_over(
        self, source: tuple[str, str], target: tuple[str, str], at: float, until: float
    ) -> None:
        """Add an arrow between threads: a value is handed over at a time, and ends the
        wait until another time."""
        nanosecond = 1e-6
        self._arrow("thread", source, at, target, until - nanosecond)

    def _arrow(
        self,
        category: str,
        source: tuple[str, str],
        sent: float,
        target: tuple[str, str],
        received: float,
    ) -> None:
        number = len(self.arrows) // 2 + 1
        for phase, (node, thread), at in (("s", source, sent), ("f", target, received)):
            pid, tid = self._numbers((node, thread))
            event = {"ph": phase, "name": category, "cat": category, "id": number}
            event |= {"pid": pid, "tid": tid, "ts": self._micros(node, at)}
            self.arrows.append(event | ({"bp": "e"} if phase == "f" else {}))

    def _place(self, where: str | tuple[str, str]) -> tuple[str, str]:
        return (where, PROGRAM) if isinstance(where, str) else where

    def _micros(self, node: str, at: float) -> float:
        return round(1000 * (at + self.shift.get(node, 0)), 3)

    def _numbers(self, place: tuple[str, str]) -> tuple[int, int]:
        pid = self.nodes.index(place[0]) + 1
        track = len([each for each in self.threads if each[0] == place[0]])
        return pid, self.threads.setdefault(place, 1000 * pid + track)

    def content(self, build: str) -> dict[str, Any]:
        """Return the JSON of the file."""
        headings = []
        for (node, thread), tid in self.threads.items():
            pid = self.nodes.index(node) + 1
            for what, name in (("process_name", node), ("thread_name", thread)):
                event = {"ph": "M", "name": what, "pid": pid, "tid": tid}
                headings.append(event | {"args": {"name": name}})
        about = {"build": build, "model": "small", "steps": "1:9", **self.about}
        events = [*headings, *self.slices, *self.arrows]
        return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}

    def read(self, folder: Path, plan: Plan) -> Trace:
        """Write the trace to a file and read it."""
        path = folder / "drawn_trace.json"
        path.write_text(json.dumps(self.content(plan.digest)))
        return read_trace(path, plan)
