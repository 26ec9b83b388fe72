"""Sends the part of a timeline that one node has recorded to the control node."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.runtime.control.barrier import TIMELINE, version_error
from placer.runtime.timeline.recorder import COLUMNS, WOKEN, Recorder


class _Header(msgspec.Struct, frozen=True):
    names: tuple[tuple[str, str], ...]
    tracks: tuple[str, ...]
    left_out: int
    full_in: int


@dataclass(frozen=True, slots=True)
class Part:
    """The slices of one node.

    Attributes:
        names: the category and the text of each name.
        slices: int64[slices, COLUMNS], see `COLUMNS`. The slices of a track are in the order
            of their ends.
        left_out: the number of slices that did not fit into the recorder.
        full_in: the first step with such a slice, or 0.
    """

    node: str
    names: tuple[tuple[str, str], ...]
    tracks: tuple[str, ...]
    slices: Array
    left_out: int = 0
    full_in: int = 0


def part_of(node: str, recorder: Recorder) -> Part:
    """Return the slices of a recorder as a part."""
    numbers = np.frombuffer(recorder.numbers(), np.int64).reshape(-1, COLUMNS)
    return Part(
        node,
        tuple(recorder.names),
        tuple(recorder.tracks),
        numbers,
        recorder.left_out,
        recorder.full_in,
    )


def send_part(channel: Channel, control: str, part: Part) -> None:
    """Send the part of this node to the control node."""
    header = _Header(part.names, part.tracks, part.left_out, part.full_in)
    encoded = np.frombuffer(msgspec.json.encode(header), np.uint8)
    channel.send(control, Key(TIMELINE, 0), [encoded, part.slices])


def receive_part(channel: Channel, node: str) -> Part:
    """Receive the part of a node; raise RunError if the message is not valid."""
    arrays = channel.receive(node, Key(TIMELINE, 0))
    try:
        encoded, slices = arrays
        header = msgspec.json.decode(encoded.tobytes(), type=_Header)
        _check(header, slices)
    except (ValueError, RecursionError) as error:
        raise version_error(node) from error
    return Part(node, slices=slices, **msgspec.structs.asdict(header))


def _check(header: _Header, slices: Array) -> None:
    if slices.dtype != np.int64 or slices.shape != (len(slices), COLUMNS):
        raise ValueError(slices.shape)
    track, name, start, end, kind, peer, edge, *_, values = slices.T
    limits = (
        (track, len(header.tracks)),
        (name, len(header.names)),
        (peer, len(header.names)),
        (values, len(header.names)),
        (kind, WOKEN + 1),
        (edge[kind == WOKEN], len(header.tracks)),
    )
    for numbers, limit in limits:
        if ((numbers < 0) | (numbers >= limit)).any():
            raise ValueError(limit)
    if (end < start).any():
        raise ValueError("a slice ends before it starts")
