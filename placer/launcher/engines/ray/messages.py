"""Messages between the driver of a job on Ray and the launcher.

The driver writes messages to its standard output, each as msgpack after its length. On
its standard input it reads a line that describes the job, then lines with orders. When
standard input ends, the job ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from placer.launcher.engines.engine import (
    JobEvent,
    JobNote,
    NodeEnded,
    NodeLines,
    NodeLog,
)
from placer.runtime.callbacks.event_queue import write_all

STOP: Final = b"stop\n"
"""The order to stop the nodes after a step."""
_LENGTH: Final = 4


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The job failed for another reason than the end of a node."""

    message: str
    hint: str | None


class Lines(msgspec.Struct, frozen=True, tag=True):
    """The message for a NodeLines event."""

    node: str
    lines: Sequence[bytes]


class Log(msgspec.Struct, frozen=True, tag=True):
    """The message for a NodeLog event."""

    node: str
    text: bytes


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The message for a NodeEnded event."""

    node: str
    status: int | None
    why: str
    host: str


class Note(msgspec.Struct, frozen=True, tag=True):
    """The message for a JobNote event."""

    text: str


Message: TypeAlias = Failed | Lines | Log | Ended | Note


def event_of(message: Message) -> JobEvent:
    """Return the event for a message."""
    match message:
        case Lines():
            return NodeLines(message.node, message.lines)
        case Log():
            return NodeLog(message.node, message.text)
        case Ended():
            return NodeEnded(message.node, message.status, message.why, message.host)
        case Note():
            return JobNote(message.text)
    raise AssertionError(message)


def write_message(fd: int, message: Message) -> None:
    """Write a message to a descriptor."""
    content = msgspec.msgpack.encode(message)
    write_all(fd, len(content).to_bytes(_LENGTH, "big") + content)


def read_message(fd: int) -> Message | None:
    """Read a message from a descriptor; return None at the end."""
    length = _read(fd, _LENGTH)
    if length is None:
        return None
    content = _read(fd, int.from_bytes(length, "big"))
    return None if content is None else msgspec.msgpack.decode(content, type=Message)


def _read(fd: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(fd, count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
