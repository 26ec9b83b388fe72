"""Writes a timeline in Chrome's trace event format, as JSON for Perfetto.

Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
A node becomes a process, and its threads become threads. A slice becomes an event "X". An
arrow becomes an event "s" in the sending slice and an event "f" in the receiving slice.
Times are microseconds with three decimals, which preserves nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from placer.errors import RunError
from placer.runtime.timeline.part import Part
from placer.runtime.timeline.recorder import RECEIVED, WAITED, WOKEN
from placer.runtime.timeline.timeline import Row, Timeline
from placer.system.files.atomic import atomic_file, mode_of

TRACKS_OF_NODE: Final = 1000
"""The thread numbers of node i start at i times this number. They are therefore unique in
the file, which some viewers require."""


def write_timeline(path: Path, timeline: Timeline) -> None:
    """Write a timeline to a file atomically; raise RunError if that fails."""
    path = path.resolve()
    try:
        with atomic_file(path, mode_of(path)) as file:
            for text in timeline_text(timeline):
                file.write(text.encode())
    except OSError as error:
        raise RunError(
            f"the trace cannot be written to {path}: {error.strerror}",
            hint="name a file in a folder that exists and has room",
        ) from error


def timeline_text(timeline: Timeline) -> Iterator[str]:
    """Yield the content of the file, piece by piece."""
    about = json.dumps(_about(timeline))
    yield f'{{"displayTimeUnit": "ms",\n"otherData": {about},\n"traceEvents": ['
    separator = "\n"
    for event in _events(timeline):
        yield f"{separator}{event}"
        separator = ",\n"
    yield "\n]}\n"


def _about(timeline: Timeline) -> dict[str, Any]:
    about: dict[str, Any] = {
        "model": timeline.model,
        "build": timeline.build,
        "steps": str(timeline.window),
        "clock": "microseconds of the control node, from the first slice on",
        "clock uncertainty in microseconds": {
            node: clock.uncertainty / 1000 for node, clock in timeline.clocks.items()
        },
        "calls": "jitted functions and copies between devices wait for their results",
        "slices left out": {
            part.node: f"{part.left_out} from step {part.full_in} on, for lack of room"
            for part in timeline.parts
            if part.left_out
        },
    }
    if timeline.failure:
        about["failure"] = timeline.failure
    if timeline.missing:
        about["nodes left out"] = list(timeline.missing)
    return about


def _events(timeline: Timeline) -> Iterator[str]:
    for part in timeline.parts:
        yield from _headings(timeline, part)
    # The receiver of a message in pieces knows only the first piece.
    sizes = {
        (index, row): int(timeline.slices[source][sent][9])
        for (source, sent), (index, row) in timeline.arrows
    }
    for number, part in enumerate(timeline.parts):
        texts = [
            (json.dumps(category), json.dumps(name), json.dumps(name.split()))
            for category, name in part.names
        ]
        pid = _process(timeline, part)
        for at, row in enumerate(timeline.slices[number].tolist()):
            track, name, start, end, kind, peer, *numbers, values = row
            category, text, _ = texts[name]
            args = ""
            if kind in (WAITED, WOKEN):
                args = f', "args": {{"for": {texts[peer][2]}}}'
            elif kind:
                other = "source" if kind == RECEIVED else "target"
                edge, step, batch, nbytes = numbers
                nbytes = nbytes or sizes.get((number, at), 0)
                args = (
                    f', "args": {{"{other}": {texts[peer][1]}, "edge": {edge}, "step": '
                    f'{step}, "microbatch": {batch}, "bytes": {nbytes}, "values": '
                    f"{texts[values][2]}}}"
                )
            yield (
                f'{{"ph": "X", "name": {text}, "cat": {category}, "pid": {pid}, '
                f'"tid": {_thread(pid, track)}, "ts": {_micros(start)}, '
                f'"dur": {_micros(end - start)}{args}}}'
            )
    numbers = count(1)
    for sent, received in timeline.arrows:
        # At the starts of the slices. Perfetto attaches an arrow to the slice that started
        # last at this time. The slice comes before the arrow in the file, so Perfetto finds
        # the right one.
        ends = _start_of(timeline, sent), _start_of(timeline, received)
        yield from _arrow(timeline, "message", next(numbers), *ends)
    for track, at, (index, row) in timeline.wakes:
        part, slices = timeline.parts[index], timeline.slices[index]
        wait = part, int(slices[row, 0]), int(slices[row, 3]) - 1
        yield from _arrow(timeline, "thread", next(numbers), (part, track, at), wait)


def _headings(timeline: Timeline, part: Part) -> Iterator[str]:
    """Yield the events that name and order a node and its threads."""
    pid = _process(timeline, part)
    labels = []
    if part.left_out:
        labels.append(f"{part.left_out} slices left out from step {part.full_in} on")
    if clock := timeline.clocks.get(part.node):
        labels.append(f"clock within {clock.uncertainty / 1000:.0f} us")
    main = _thread(pid, 0)
    yield _heading("process_name", pid, main, name=part.node)
    yield _heading("process_sort_index", pid, main, sort_index=pid)
    if labels:
        yield _heading("process_labels", pid, main, labels=", ".join(labels))
    for track, name in enumerate(part.tracks):
        tid = _thread(pid, track)
        yield _heading("thread_name", pid, tid, name=name)
        yield _heading("thread_sort_index", pid, tid, sort_index=track)


def _heading(what: str, pid: int, tid: int, **args: object) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


_End = tuple[Part, int, int]
"""An end of an arrow: the node, the track and the time."""


def _start_of(timeline: Timeline, row: Row) -> _End:
    """Return the start of a slice, as the end of an arrow."""
    index, at = row
    track, _, start, *_ = timeline.slices[index][at].tolist()
    return timeline.parts[index], track, start


def _arrow(
    timeline: Timeline,
    category: str,
    number: int,
    start: _End,
    end: _End,
) -> Iterator[str]:
    """Yield the two ends of an arrow."""
    for phase, (part, track, at) in (("s", start), ("f", end)):
        pid = _process(timeline, part)
        binding = "" if phase == "s" else ', "bp": "e"'
        yield (
            f'{{"ph": "{phase}", "name": "{category}", "cat": "{category}", '
            f'"id": {number}, "pid": {pid}, "tid": {_thread(pid, track)}, '
            f'"ts": {_micros(at)}{binding}}}'
        )


def _process(timeline: Timeline, part: Part) -> int:
    return timeline.nodes.index(part.node) + 1


def _thread(pid: int, track: int) -> int:
    return pid * TRACKS_OF_NODE + track


def _micros(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
