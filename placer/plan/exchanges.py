"""The exchanges: how gradients, parameters and rows of tables go between nodes, other than
as plain values that one op computes and another one uses.

This is the only list of them. An exchange is the kind of the ops that move values in a
graph, and the `exchange` of an edge in a plan. Passes, the emitter, the reports and the
runtime ask its declaration, so a new exchange is declared here, inserted by its pass in
`placer.compiler.passes.exchange`, and run by the methods of a node that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

ExchangeName = Literal[
    "pull", "push", "push_all", "push_sum", "pull_sum", "offer", "sum_of_first",
    "push_delta", "ask_rows", "give_rows", "push_rows",
]  # fmt: skip

Moved = Literal["gradients", "parameters", "differences", "sums", "keys", "rows"]
"""The values that an exchange moves: gradients of parameters or of rows, parameters,
differences of a worker's own parameters, sums of gradients, keys, or rows of keys."""

Setting = Literal["first", "every", "dtype"]
"""An attribute of the ops of some exchanges: how many workers a step takes the gradients
of, how many steps are between two messages, and the dtype in messages."""

Answered = Literal["push", "request", "drain", "ask"]
"""A message of a worker that a server may answer: one with values for tables, a request for
parameters, the last one before a drain, or a request for the rows of keys."""

Handling = Literal["applies", "adds", "answers"]
"""The work of a receiver for each message: it updates tables by the values, adds them to
sums, or answers with rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """The declaration of an exchange.

    Attributes:
        name: the kind of its ops.
        doc: what its ops do.
        moves: the values that it moves.
        to: the nodes that receive them. In an asynchronous exchange, servers handle a
            message as it arrives, and workers before their next step.
        is_by_key: whether it moves keys, or rows of a sparse table. Such an exchange is
            synchronous, unless its ops have a `group`.
        is_asynchronous: whether no node waits for a step of all others. Of one by key:
            whether it is so with a `group`.
        handling: the work of the receiver for each message; None if a step receives it.
        answers: the messages of workers that its own answer, one by one; empty for an
            exchange that does not answer another one.
        waits_for_microbatches: whether it moves values of all microbatches of a step.
        sends_keys_ahead: whether the keys of the next step are sent before its messages.
        settings: the attributes of its ops besides their `group`.
        layout: the layouts of the moved values; see `StructuralKind`.
        send, receive: the methods of a node that send and receive the message of a step.
        send_answer, receive_message: the methods of a node that serves, for one message.
        why: the reason for its ops; a template of the op's attributes.
        sent: the comment of a send in programs; a template of the receiving `{place}` and
            the op's attributes.
        received: the comment of a receive in programs; a template of the number `{of}` of
            senders and the op's attributes.
        message: the comment of a received message in `serve`; a template of the sending
            `{place}`.
        answer: the comment of an answer in `serve`; a template of the receiving `{place}`.
        words: the description of the values in `placer explain`; a template of the edge's
            attributes.
    """

    name: ExchangeName
    doc: str
    moves: Moved
    to: Literal["servers", "workers"]
    is_by_key: bool = False
    is_asynchronous: bool = True
    handling: Handling | None = None
    answers: tuple[Answered, ...] = ()
    waits_for_microbatches: bool = False
    sends_keys_ahead: bool = False
    settings: tuple[Setting, ...] = ()
    layout: Literal["replicated", "parts"] = "replicated"
    send: str = "send"
    receive: str = "receive"
    send_answer: str = "answer"
    receive_message: str = "pushed"
    why: str = "inserted: group {group} is updated without lockstep"
    sent: str = ""
    received: str = ""
    message: str = ""
    answer: str = ""
    words: str

    def is_free(self, has_group: bool) -> bool:
        """Whether no node waits for a step of all others, for ops or an edge with or
        without a `group`."""
        return self.is_asynchronous and (has_group or not self.is_by_key)

    @property
    def is_answer(self) -> bool:
        """Whether its messages answer those of another exchange."""
        return bool(self.answers)

    @property
    def updates_workers(self) -> bool:
        """Whether workers update tables of their own by the values."""
        return self.handling == "applies" and self.to == "workers"

    @property
    def takes_first(self) -> bool:
        """Whether a step takes the values of the workers that are first, and does not wait
        for the others."""
        return "first" in self.settings

    @property
    def is_offered(self) -> bool:
        """Whether each worker takes the values of the step that it begins, so that their
        node keeps those of earlier steps for workers that are late."""
        return self.moves == "parameters" and not self.is_answer

    @property
    def is_push(self) -> bool:
        """Whether each worker by itself sends the values by which tables are updated."""
        return self.handling in ("applies", "adds") and not self.is_answer


_ONE = "of one {place}"

EXCHANGES: Final[Mapping[str, Exchange]] = {
    each.name: each
    for each in (
        Exchange(
            name="pull",
            doc="give each worker the newest version of a parameter that it has received",
            moves="parameters",
            to="workers",
            answers=("push", "request"),
            settings=("every",),
            receive="pull",
            received="the newest that have arrived",
            answer="a {place} needs the newest parameters",
            words="the newest version, in answer to each push",
        ),
        Exchange(
            name="push",
            doc="give a server the gradient of one worker",
            moves="gradients",
            to="servers",
            handling="applies",
            waits_for_microbatches=True,
            send="push",
            message=_ONE,
            words="each worker's own, applied as it arrives",
        ),
        Exchange(
            name="push_all",
            doc="give all workers the gradient of one worker, and each the sum of those that"
            " have come",
            moves="gradients",
            to="workers",
            handling="applies",
            waits_for_microbatches=True,
            send="push",
            message="the sum of the received gradients",
            words="each worker's own, applied by all as they come",
        ),
        Exchange(
            name="push_sum",
            doc="give servers the gradient of one worker, which they add up for each worker",
            moves="gradients",
            to="servers",
            handling="adds",
            waits_for_microbatches=True,
            send="push",
            receive_message="add_to_sums",
            message=_ONE,
            words="each worker's own, added to the sums for all workers",
        ),
        Exchange(
            name="pull_sum",
            doc="give a worker the sum of the gradients since it has asked last",
            moves="sums",
            to="workers",
            handling="applies",
            answers=("push", "request", "drain"),
            send_answer="send_sum",
            message="the sum since this worker's last request",
            answer="the sum since the {place}'s last request",
            words="the sum since a worker has asked last, in answer to each push",
        ),
        Exchange(
            name="offer",
            doc="give each worker that begins a step the parameter of that step",
            moves="parameters",
            to="workers",
            is_asynchronous=False,
            send="offer",
            sent="sent to each {place} that begins this step",
            why="inserted: a step of group {group} does not wait for its last workers",
            words="to each worker that begins the step",
        ),
        Exchange(
            name="sum_of_first",
            doc="add what the workers that are first have computed, scaled to all rows",
            moves="gradients",
            to="servers",
            is_asynchronous=False,
            waits_for_microbatches=True,
            settings=("first",),
            layout="parts",
            receive="sum_of_first",
            why="inserted: a step of group {group} takes the gradients of the first"
            " {first} workers",
            received="from the first {first} of {of} workers, summed in node order",
            words="summed over the first {first}, in node order",
        ),
        Exchange(
            name="push_delta",
            doc="give a server the difference of one worker, every so many steps",
            moves="differences",
            to="servers",
            handling="applies",
            waits_for_microbatches=True,
            settings=("every", "dtype"),
            send="push_delta",
            why="inserted: workers exchange what they have trained every {every} steps",
            sent="every {every} steps: this worker's change of the parameters",
            message=_ONE,
            words="each worker's own, every {every} steps",
        ),
        Exchange(
            name="ask_rows",
            doc="send keys to the nodes that hold their partitions",
            moves="keys",
            to="servers",
            is_by_key=True,
            handling="answers",
            send="send_keys",
            receive="receive_keys",
            receive_message="asked_keys",
            why="inserted: asks for the rows of {operands}",
            sent="each node gets the keys it stores",
            message=_ONE,
            words="each node's own, to the nodes that hold them",
        ),
        Exchange(
            name="give_rows",
            doc="send the nodes that asked for rows the rows of their keys",
            moves="rows",
            to="workers",
            is_by_key=True,
            answers=("ask",),
            send="send_rows",
            receive="receive_rows",
            send_answer="answer_rows",
            why="inserted: the rows that nodes have asked for",
            sent="each node gets the rows of its keys",
            answer="to the {place} that sent the keys",
            words="to each node those of its keys",
        ),
        Exchange(
            name="push_rows",
            doc="send the gradients of rows to the nodes that hold their partitions",
            moves="gradients",
            to="servers",
            is_by_key=True,
            handling="applies",
            sends_keys_ahead=True,
            send="send_row_gradients",
            receive="receive_row_gradients",
            receive_message="pushed_rows",
            why="inserted: the gradients of the rows of a sparse table",
            sent="each node gets the gradients of its rows",
            message=_ONE,
            words="each node's own, to the nodes that hold their rows",
        ),
    )
}
"""The exchanges by their names."""
