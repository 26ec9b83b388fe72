"""The barrier: the first node, the control node, keeps the run in step.

The messages of the runtime itself are the channel's, on edges below 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from placer.build.plan import Plan
from placer.channel.protocol import Channel, Key
from placer.errors import RunError

T = TypeVar("T")

AGREE, READY, GO, STEP, EVALUATION, DONE, SAVE = -1, -2, -3, -4, -5, -6, -7
"""The edges of barriers, of metrics, and of saving."""
STOP, LAST = -8, -9
"""Those of a stop: the control node asks for the step that a node has begun and gets it;
then it tells the last step of the run."""
ROWS = -10
"""That of the digests of rows."""


def barrier(
    plan: Plan,
    channel: Channel,
    told: dict[str, Any],
    at: int,
    check: Callable[[list[Any]], None] | None = None,
) -> list[Any]:
    """Wait until every node has come to the same point; all get what all told.

    `told` is any JSON. The result is in the order of the plan's nodes. The control node
    checks it before it lets the others go on: one node fails, and not all. RunError for
    a node of another version.
    """
    names = [node.name for node in plan.nodes]
    if channel.node == plan.control:
        heard = [
            told if name == channel.node
            else heard_of(channel, name, Key(at, 0), dict)
            for name in names
        ]  # fmt: skip
        if check is not None:
            check(heard)
        for name in names:
            if name != channel.node:
                channel.send(name, Key(GO, at), [dump(heard)])
        return heard
    channel.send(plan.control, Key(at, 0), [dump(told)])
    everything: list[Any] = heard_of(channel, plan.control, Key(GO, at), list)
    if len(everything) != len(names):
        raise _unknown(plan.control)
    return everything


def heard_of(channel: Channel, source: str, key: Key, kind: type[T]) -> T:
    """What a node tells in JSON; RunError for what no node of this version does."""
    arrays = channel.receive(source, key)
    try:
        return msgspec.convert(json.loads(arrays[0].tobytes()), kind)
    except (IndexError, ValueError, RecursionError) as error:  # msgspec's own, too
        raise _unknown(source) from error


def _unknown(source: str) -> RunError:
    return RunError(
        f"{source} does not speak as this node does",
        hint="run the same version of placer on every node",
    )


def dump(value: Any) -> np.ndarray:
    """Any JSON as what a channel carries."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
