"""What a worker and a server tell each other about a table without lockstep.

A worker sends messages on the `push` edge of the table, numbered from 1. The server
answers messages of the kinds that the exchange of the `pull` edge names, on this edge,
with the same number and the newest parameters. Every message begins with a header,
int64[8], filled with zeros:

    PUSH     PUSH, newest step, number of steps, version of the parameters used, rows of
             the worker in the newest step, rows of its batch
             then the gradient of each block, added over the steps; none without rows; or
             the difference that the steps made, of each block: 1 row of 1
    REQUEST  REQUEST, steps: answer once these steps of all workers are applied
    DRAIN    DRAIN, newest step: the worker has pushed all that it has
    ASK      ASK, steps: as a request, for rows of sparse tables
             then for each table keys and what goes with them, as in `row_exchange`; a
             push afterwards has the gradients of their rows
    answer   version, steps: these steps of all workers that have not drained are applied;
             steps of all workers that are applied
             then the values of each block

If workers update by themselves, the answers are on a `pull_sum` edge, also to DRAIN, when
all workers have drained; and a message goes to each server, which has ranges of the
gradients:

    answer   version, steps, steps, number of steps in the sums, newest step in the sums
             then the sum of each range since the last answer; none without steps

The version of merged steps is that of the oldest one.
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
    """What a worker sends."""

    PUSH = 1
    REQUEST = 2
    DRAIN = 3
    ASK = 4


def is_answered(kind: MessageKind, pull: Edge) -> bool:
    """Whether a server answers messages of a kind on an edge."""
    return pull.declared is not None and kind.name.lower() in pull.declared.answers


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A message that a server handles.

    Attributes:
        edge: the edge of the case that handles it: `push` for gradients, `pull` for
            parameters to answer with.
        worker: the worker.
        number: the number of the worker's message.
        step: the newest step of a push.
        steps: how many steps it has.
        share: which part of the rows of the batch the worker had.
        staleness: how many steps of other workers were applied since the version of the
            parameters that the gradients were computed from.
        base: the values of the blocks of that version, if they are kept.
        parts: the pieces of a push: those of the worker's gradients, or of the differences
            of all workers of a round. The array 0 is the header.
        keys: the keys of each sparse table, whose rows are asked for or have the
            gradients of a push.
        least: the newest step up to which all steps of all workers are applied, with
            this push.
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
        """Return the chunks of a push as they arrive: the index of the value, of those of
        the edge, the index of the first element, and the elements of each part.

        Raises RunError for parts that do not fit the values or each other.
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
    """Return the error for what a worker has sent that does not fit the plan."""
    return RunError(
        f"what {worker} sent on {key} does not fit the build",
        hint="give every node of a run the same build",
    )


def header(*numbers: int) -> Array:
    """Return the header with these numbers."""
    return np.array([*numbers, *[0] * (HEADER_SIZE - len(numbers))], np.int64)


def join_flat(
    pieces: Iterator[Piece], dtypes: Sequence[npt.DTypeLike]
) -> list[Array] | None:
    """Return the arrays of a message after its header, flat; None if they are not of
    these dtypes. Of an empty array nothing comes."""
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
