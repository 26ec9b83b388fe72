"""The exchanges: the ways in which nodes exchange gradients, parameters and rows of tables.

An exchange is the kind of the ops in a graph, and the `exchange` of an edge in a plan. Its
declaration here serves the passes, the emitter, the reports and the runtime. A pass in
`placer.compiler.passes.exchange` inserts its ops, and methods of a node run them.
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
"""The values that an exchange moves. Differences are changes of a worker's parameters,
sums are sums of gradients, and rows are the rows of keys in sparse tables."""

Setting = Literal["first", "every", "dtype"]
"""An attribute of the ops of some exchanges: the number of workers in a step with backup
workers, the number of steps from message to message, and the dtype in messages."""

Answered = Literal["push", "request", "drain", "ask"]
"""A message of a worker that a server may answer: values for tables, a request for
parameters, the end of the worker's messages, or a request for the rows of keys."""

Handling = Literal["applies", "adds", "answers"]
"""The work of a receiver for each message: it applies the values to tables, adds the values
to sums, or answers with rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """The declaration of an exchange.

    Attributes:
        name: the kind of its ops.
        doc: what its ops do.
        moves: the values that it moves.
        to: the nodes that receive the values. In an asynchronous exchange, servers handle
            a message as it arrives, and workers before their next step.
        is_by_key: whether it moves keys, or rows of a sparse table. Such an exchange is
            synchronous unless its ops have a `group`.
        is_asynchronous: whether the exchange is asynchronous; of an exchange by key,
            whether it is asynchronous with a `group`.
        handling: the work of the receiver for each message; None if a step receives it.
        answers: the messages of workers that this exchange answers, one by one.
        waits_for_microbatches: whether it moves values of all microbatches of a step.
        sends_keys_ahead: whether the keys of the next step are sent before its messages.
        settings: the attributes of its ops besides their `group`.
        layout: the layouts of the moved values; see `StructuralKind`.
        send, receive: the methods of a node for the message of a step.
        send_answer, receive_message: the methods of a node for one message in `serve`.
        why: the reason for its ops; a template of the op's attributes.
        sent: the comment of a send in programs; a template of the receiving `{place}` and
            the op's attributes, and for differences of the `{delta}` and its `{table}`.
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
    why: str = "inserted: optimizer group {group} is asynchronous"
    sent: str = ""
    received: str = ""
    message: str = ""
    answer: str = ""
    words: str

    def is_free(self, has_group: bool) -> bool:
        """Whether ops or an edge with or without a `group` are asynchronous."""
        return self.is_asynchronous and (has_group or not self.is_by_key)

    @property
    def is_answer(self) -> bool:
        """Whether its messages answer the messages of another exchange."""
        return bool(self.answers)

    @property
    def updates_workers(self) -> bool:
        """Whether workers apply the values to their own tables."""
        return self.handling == "applies" and self.to == "workers"

    @property
    def takes_first(self) -> bool:
        """Whether a step takes the values of the fastest workers only."""
        return "first" in self.settings

    @property
    def is_offered(self) -> bool:
        """Whether a server keeps the parameters of earlier steps for stragglers."""
        return self.moves == "parameters" and not self.is_answer

    @property
    def is_push(self) -> bool:
        """Whether each worker sends values for tables without waiting for other workers."""
        return self.handling in ("applies", "adds") and not self.is_answer


EXCHANGES: Final[Mapping[str, Exchange]] = {
    each.name: each
    for each in (
        Exchange(
            name="pull",
            doc="use the newest version of a parameter that the worker has received",
            moves="parameters",
            to="workers",
            answers=("push", "request"),
            settings=("every",),
            receive="pull",
            answer="a {place}'s request (each push makes one): the newest parameters go back",
            words="the newest version, sent in answer to each push",
        ),
        Exchange(
            name="push",
            doc="send the gradient of one worker to a server",
            moves="gradients",
            to="servers",
            handling="applies",
            waits_for_microbatches=True,
            send="push",
            message="the gradients of one {place}",
            words="each worker's gradients, applied as they arrive",
        ),
        Exchange(
            name="push_all",
            doc="send the gradient of one worker to all workers; each worker receives the sum"
            " of the received gradients",
            moves="gradients",
            to="workers",
            handling="applies",
            waits_for_microbatches=True,
            send="push",
            message="the sum of the received gradients",
            words="each worker's gradients, applied by all workers as they arrive",
        ),
        Exchange(
            name="push_sum",
            doc="send the gradient of one worker to servers, which add it to a sum for each"
            " worker",
            moves="gradients",
            to="servers",
            handling="adds",
            waits_for_microbatches=True,
            send="push",
            receive_message="add_to_sums",
            message="the gradients of one {place}",
            words="each worker's gradients, added to the sums for all workers",
        ),
        Exchange(
            name="pull_sum",
            doc="send a worker the sum of the gradients since its last request",
            moves="sums",
            to="workers",
            handling="applies",
            answers=("push", "request", "drain"),
            send_answer="send_sum",
            message="the answer to this worker's last request: a sum of gradients",
            answer="a {place}'s request (each push makes one): the sum of the gradients since"
            " its last request goes back",
            words="the sum since the worker's last request, sent in answer to each push",
        ),
        Exchange(
            name="offer",
            doc="send the parameter of a step to each worker that begins the step",
            moves="parameters",
            to="workers",
            is_asynchronous=False,
            send="offer",
            sent="sent to each {place} that begins this step",
            why="inserted: a step of optimizer group {group} does not wait for stragglers",
            words="to each worker that begins the step",
        ),
        Exchange(
            name="sum_of_first",
            doc="sum the results of the fastest workers, scaled to the full batch",
            moves="gradients",
            to="servers",
            is_asynchronous=False,
            waits_for_microbatches=True,
            settings=("first",),
            layout="parts",
            receive="sum_of_first",
            why="inserted: a step of optimizer group {group} takes the gradients of the"
            " fastest {first} workers",
            received="adds the values of the fastest {first} of {of} workers in node order,"
            " scaled to the full batch",
            words="summed over the fastest {first}, in node order",
        ),
        Exchange(
            name="push_delta",
            doc="send the change of one worker's parameters to a server, every few steps",
            moves="differences",
            to="servers",
            handling="applies",
            waits_for_microbatches=True,
            settings=("every", "dtype"),
            send="push_delta",
            why="inserted: workers exchange changes of their parameters every {every} steps",
            sent='every {every} steps: sends {delta} of "{table}"; the server answers with its'
            " parameters",
            message="the delta of one {place}",
            words="each worker's change of the parameters, every {every} steps",
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
            why="inserted: requests the rows of {operands}",
            sent="each node gets the keys it stores",
            message="the keys of one {place}, which requests their rows",
            words="each node's keys, to the nodes that store them",
        ),
        Exchange(
            name="give_rows",
            doc="send the rows of keys to the nodes that requested the rows",
            moves="rows",
            to="workers",
            is_by_key=True,
            answers=("ask",),
            send="send_rows",
            receive="receive_rows",
            send_answer="answer_rows",
            why="inserted: sends the requested rows",
            sent="each node gets the rows of its keys",
            answer="to the {place} that sent the keys",
            words="to each node the rows of its keys",
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
            why="inserted: sends the gradients of rows of a sparse table",
            sent="each node gets the gradients of its rows",
            message="the row gradients of one {place}",
            words="each node's row gradients, to the nodes that store the rows",
        ),
    )
}
"""The exchanges by their names."""
