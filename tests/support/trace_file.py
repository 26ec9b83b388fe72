"""Reads a trace as `--trace` writes it, and checks what viewers need."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class TraceFile:
    """The events of a trace; times are exact.

    Attributes:
        about: what the file says of itself.
        slices: the slices by the name of the node and that of the thread.
        arrows: the two ends of each arrow between nodes, by its number.
        wakes: the two ends of each arrow between the threads of a node, by its number.
        nodes: the names of the nodes, in the order in which they are shown.
    """

    about: Event
    slices: dict[tuple[str, str], list[Event]] = field(default_factory=dict)
    arrows: dict[int, tuple[Event, Event]] = field(default_factory=dict)
    wakes: dict[int, tuple[Event, Event]] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)

    def names(self, node: str, thread: str = "program") -> Counter[str]:
        """How many slices of a thread have each name."""
        return Counter(each["name"] for each in self.slices.get((node, thread), ()))

    def woken(self, node: str, thread: str = "program") -> Counter[tuple[str, str]]:
        """How often a slice of another thread has ended a wait of a thread of a node."""
        return Counter(
            (start["slice"]["name"], end["slice"]["name"])
            for start, end in self.wakes.values()
            if end["place"] == (node, thread)
        )

    def messages(self, end: str) -> Counter[tuple[Any, ...]]:
        """The messages that slices have: of those that send, `end` is "target", of those
        that receive "source"."""
        found: Counter[tuple[Any, ...]] = Counter()
        for (node, _), slices in self.slices.items():
            for each in slices:
                args = each.get("args", {})
                if end in args:
                    key = args["edge"], args["step"], args["microbatch"]
                    ends = (node, args[end]) if end == "target" else (args[end], node)
                    found[*ends, *key] += 1
        return found


def read_trace(path: Path) -> TraceFile:
    """Read a trace; check that slices nest, and that arrows begin and end in slices."""
    text = path.read_text(encoding="utf-8")
    read = json.loads(text, parse_float=Decimal)
    events = read["traceEvents"]
    trace = TraceFile(read["otherData"])
    heading = {
        (each["name"], each["tid"]): each["args"]
        for each in events
        if each["ph"] == "M"
    }
    threads, processes = {}, {}
    for each in events:
        if each["name"] == "process_name":
            processes[each["pid"]] = each["args"]["name"]
    for (what, tid), args in heading.items():
        if what == "thread_name":
            threads[tid] = args["name"]
    trace.nodes = [processes[pid] for pid in sorted(processes)]
    for each in events:
        if each["ph"] == "X":
            place = processes[each["pid"]], threads[each["tid"]]
            trace.slices.setdefault(place, []).append(each)
    for slices in trace.slices.values():
        check_nested(slices)
    ends: dict[int, dict[str, Event]] = defaultdict(dict)
    for each in events:
        if each["ph"] in ("s", "f"):
            assert each["ph"] not in ends[each["id"]]
            ends[each["id"]][each["ph"]] = each
            place = processes[each["pid"]], threads[each["tid"]]
            each["slice"] = innermost(trace.slices[place], each["ts"])
            each["place"] = place
    for number, both in ends.items():
        if both["s"]["cat"] == "thread":
            check_wake(both["s"], both["f"])
            trace.wakes[number] = both["s"], both["f"]
            continue
        assert both["s"]["cat"] == both["f"]["cat"] == "message"
        sent, received = both["s"]["slice"]["args"], both["f"]["slice"]["args"]
        for name in ("edge", "step", "microbatch"):
            assert sent[name] == received[name]
        assert sent["target"] == processes[both["f"]["pid"]]
        assert received["source"] == processes[both["s"]["pid"]]
        trace.arrows[number] = both["s"], both["f"]
    return trace


def check_wake(start: Event, end: Event) -> None:
    """Check that an arrow goes from one thread to the end of a wait of another one."""
    assert end["cat"] == "thread"
    (node, thread), (other, waiting) = start["place"], end["place"]
    assert node == other
    assert thread != waiting
    assert start["ts"] <= end["ts"]
    wait = end["slice"]
    assert wait["cat"] == "wait"
    assert wait["name"] == f"wait for {thread}"
    assert wait["args"] == {"for": [node]}
    assert end["ts"] == wait["ts"] + wait["dur"] - Decimal("0.001")


def check_nested(slices: list[Event]) -> None:
    """Check that the slices of a thread come in order, each within those around it; and
    that a wait has no inner slices and does not belong to the message that ends it."""
    around: list[tuple[Decimal, Event]] = []
    last = Decimal(0)
    for each in slices:
        start, end = each["ts"], each["ts"] + each["dur"]
        assert start >= last, "not in order"
        last = start
        while around and around[-1][0] <= start:
            around.pop()
        if around:
            outer_end, outer = around[-1]
            assert end <= outer_end, f"{each} crosses {outer}"
            args = outer.get("args", {})
            assert "for" not in args, f"{each} is in {outer}"
            if "source" in args and each["cat"] == "wait":
                assert start > outer["ts"], f"{outer} begins with {each}"
        around.append((end, each))


def innermost(slices: list[Event], time: Decimal) -> Event:
    """Return the innermost slice at a time; its start belongs to it, its end does not."""
    return [each for each in slices if each["ts"] <= time < each["ts"] + each["dur"]][
        -1
    ]
