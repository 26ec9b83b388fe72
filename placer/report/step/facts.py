"""The facts about the time of a training step. Times are seconds."""

from __future__ import annotations

import msgspec


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the longest chain of a step.

    Attributes:
        node: the node that worked, or the node that waited for a message.
        thread: the thread of the node.
        category: the category of the slice, "message" or "other".
        name: the name of the slice, or the values of the message.
        start, end: the time since the start of the step.
        source, target: the nodes of a message that the piece sends, carries or receives;
            empty for work.
        nbytes: the bytes of a message.
    """

    node: str
    thread: str
    category: str
    name: str
    start: float
    end: float
    source: str = ""
    target: str = ""
    nbytes: int = 0


class Part(msgspec.Struct, frozen=True):
    """The pieces of the same work, message or kind, in the longest chains of several steps.

    Attributes:
        name: the work and its node, the message and its nodes, or the kind.
        seconds: the mean time in a step.
        spread: the standard deviation over the steps; 0 for a single step.
    """

    name: str
    seconds: float
    spread: float


class SliceFacts(msgspec.Struct, frozen=True, array_like=True):
    """A slice of the timeline; inner slices have a larger depth."""

    start: float
    end: float
    category: str
    name: str
    depth: int


class ThreadRow(msgspec.Struct, frozen=True):
    """The slices of a thread in the median step."""

    node: str
    thread: str
    slices: tuple[SliceFacts, ...]


class SentBytes(msgspec.Struct, frozen=True, array_like=True):
    """The bytes that one node sends to another on an edge of the plan in the median step.

    Attributes:
        seconds: the time from the start of sending a message until it is sent and
            received, for the slowest message; 0 if the trace lacks one of both.
    """

    edge: int
    source: str
    target: str
    nbytes: int
    seconds: float = 0.0


class StepTime(msgspec.Struct, frozen=True):
    """The time of the median step of a trace.

    Attributes:
        step: the number of the median step.
        seconds: its duration.
        steps: the number of recorded steps.
        chain: the longest chain of work and messages, from the start of the step to its
            end, without gaps.
        parts: the work and the messages in the chains of the steps around the median,
            longest first.
        shares: the fraction of the recorded time in each category, by node.
        rows: the timeline of all threads.
        sentence: the duration and the parts as text.
        advice: sentences about settings that would make a step faster.
        measured: the own time of each call in the median step, by node and name.
        sent: the bytes of the messages of the median step; empty if the trace lacks a node.
    """

    step: int
    seconds: float
    steps: int
    chain: tuple[Piece, ...]
    shares: dict[str, dict[str, float]]
    rows: tuple[ThreadRow, ...]
    sentence: str
    advice: tuple[str, ...]
    measured: dict[str, dict[str, float]]
    sent: tuple[SentBytes, ...] = ()
    parts: tuple[Part, ...] = ()
