"""The messages between workers and servers of an asynchronous table.

A worker sends messages on the `push` edge of the table, numbered from 1. The server answers
some kinds of messages on the `pull` edge, with the same number and the newest parameters; the
exchange of the `pull` edge names these kinds. Every message begins with a header, int64[8],
padded with zeros:

    PUSH     PUSH, newest step, number of steps, version of the parameters used, rows of the
             worker in the newest step, rows of its batch
             then the gradient of each block, summed over the steps; no gradients without rows;
             in the mode `geo` the difference of each block, with 1 row of 1
    REQUEST  REQUEST, step: answer once this step of all workers is applied
    DRAIN    DRAIN, newest step: the worker has pushed everything
    ASK      ASK, step: a request for rows of sparse tables
             then the arrays of keys, as in `row_exchange`; a later push
             holds the gradients of the rows
    answer   version, newest step applied for all workers that have not drained, newest step
             applied for all workers
             then the values of each block

For a worker-side update, answers are sent on a `pull_sum` edge. DRAIN is answered as well, when
all workers have drained. A message goes to each server, and each server holds ranges of the
gradients:

    answer   version, both steps as above, number of steps in the sums, newest step in the sums
             then the sum of each range since the last answer; no sums without steps

The version of merged steps is the version of the oldest step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from placer.channel.interface import Array, Key, Piece
from placer.errors import RunError
from placer.plan.plan import Edge, EdgeValue
from placer.tables.key_sums import KeyPart

HEADER_SIZE = 8


class MessageKind(IntEnum):
    """The kind of a worker's message."""

    PUSH = 1
    REQUEST = 2
    DRAIN = 3
    ASK = 4


def is_answered(kind: MessageKind, pull: Edge) -> bool:
    """Whether a server answers messages of this kind on the edge `pull`."""
    return pull.declared is not None and kind.name.lower() in pull.declared.answers


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A message that a server handles.

    Attributes:
        edge: the number of the edge that selects the handling: `push` for gradients,
            `pull` to answer with parameters.
        worker: the worker.
        number: the number of the worker's message.
        step: the newest step of a push.
        steps: the number of steps in a push.
        share: the worker's fraction of the rows of the batch.
        staleness: the number of other workers' steps that were applied since the version
            of the parameters that the gradients were computed from.
        base: the block values of that version, if they are kept.
        parts: the pieces of a push. A round with an outer optimizer has one part for
            each worker, any other push has a single part. Array 0 is the header.
        keys: the requested keys of sparse tables, or the keys of the pushed gradients,
            in the order of the edge of keys.
        least: the newest step applied for all workers, including this push.
    """

    edge: int
    worker: str
    number: int
    step: int = 0
    steps: int = 0
    share: float = 1.0
    staleness: int = 0
    base: Sequence[Array] = ()
    parts: tuple[Iterator[Piece], ...] = ()
    keys: Sequence[KeyPart] = ()
    least: int = 0

    def chunks(
        self, values: Sequence[EdgeValue]
    ) -> Iterator[tuple[int, int, Sequence[Array]]]:
        """Iterate over the chunks of a push as they arrive.

        Each chunk consists of the index of the value on the edge, the index of the first
        element, and the elements of each part.

        Raises:
            RunError: for parts that do not fit the values or each other.
        """
        for pieces in zip_longest(*self.parts):
            index, start = pieces[0][:2] if pieces[0] else (0, 0)
            if not 0 < index <= len(values):
                raise malformed(self)
            dtype = values[index - 1].dtype
            for piece in pieces:
                if not piece or piece[:2] != (index, start) or piece[2].dtype != dtype:
                    raise malformed(self)
            yield index - 1, start, [view for _, _, view in pieces]


def malformed(message: WorkerMessage) -> RunError:
    """Return the error for a message that does not fit the plan."""
    return malformed_on(message.worker, Key(message.edge, message.number))


def malformed_on(worker: str, key: Key) -> RunError:
    """Return the error for a message of a worker that does not fit the plan."""
    return RunError(
        f"the message from {worker} on {key} does not fit the build",
        hint="give every node of a run the same build",
    )


def header(*numbers: int) -> Array:
    """Return a message header with these numbers."""
    return np.array([*numbers, *[0] * (HEADER_SIZE - len(numbers))], np.int64)


def join_flat(
    pieces: Iterator[Piece], dtypes: Sequence[npt.DTypeLike]
) -> list[Array] | None:
    """Return the arrays of a message after its header, flat. Returns None if the arrays
    do not have these dtypes. An empty array has no pieces."""
    parts: list[list[Array]] = [[] for _ in dtypes]
    filled = [0] * len(dtypes)
    for index, start, view in pieces:
        i = index - 1
        if not 0 <= i < len(dtypes) or view.dtype != dtypes[i] or start != filled[i]:
            return None
        parts[i].append(view.copy())  # the view is valid until the next piece
        filled[i] += view.size
    return [
        np.concatenate(part) if part else np.empty(0, dtype)
        for part, dtype in zip(parts, dtypes, strict=True)
    ]
