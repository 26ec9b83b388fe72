"""The calls of a node program that concern rows of sparse tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placer.channel.interface import Array
from placer.runtime.exchange.worker_messages import WorkerMessage

if TYPE_CHECKING:  # what only a run with sparse tables imports
    from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows
    from placer.runtime.node.collected_keys import CollectedKeys
    from placer.runtime.node.row_lookups import RowLookups
    from placer.runtime.node.row_pushes import RowPushes
    from placer.tables.key_sums import KeySums
    from placer.tables.sparse.batch_keys import BatchKeys


@dataclass(frozen=True, slots=True)
class RowCalls:
    """The calls of a program on rows of sparse tables.

    A node that looks up rows, and one that holds them:

        ids, label = node.read("ids", "label")
        keys, position = node.distinct_keys("emb.table", ids)
        node.send_keys(1, keys)
        (rows,) = node.receive_rows(2, keys)
        loss, d_rows = forward_backward(position, rows, label)
        node.send_row_gradients(3, keys, d_rows)

        (keys,) = node.receive_keys(1)
        rows = node.distributed_lookup_table("emb.table", keys)
        node.send_rows(2, rows)
        (d_rows,) = node.receive_row_gradients(3)
        total = node.sum_by_key(keys, d_rows)
        node.update_rows("emb.table", total)

    Attributes:
        keys: the keys that the node looks up.
        lookups: asks for rows, and gives them.
        pushes: sends gradients of rows, and updates by them.
        next_rows: returns this node's rows of a value that it reads, in the next step.
    """

    keys: CollectedKeys
    lookups: RowLookups
    pushes: RowPushes
    next_rows: Callable[[str], Array]

    def distinct_keys(
        self,
        table: str,
        *ids: Any,
        padding: tuple[int | None, ...] = (),
        show: Any = None,
        click: Any = None,
        time: Any = None,
    ) -> tuple[Any, ...]:
        """Collect the keys that this node looks up in a table, each once.

        Args:
            table: the name of the table.
            ids: arrays of keys, of any shape and integer dtype.
            padding: the key of each array that stands for none; None if there is none.
            show, click: what an occurrence in each row counts for the score of its key, of
                shape [batch]; by default 1 and 0.
            time: the time of each row in seconds, integers of shape [batch].

        Raises:
            RunError: scores are not finite, or times are not seconds from 0 to 2^32 - 1.

        Returns:
            The keys; and for each array the position of each of its keys among them, int32
            of the same shape, and -1 for padding.

        Example:
            keys, position = node.distinct_keys("emb.table", ids)
        """
        given = {"show": show, "click": click, "time": time}
        stats = {name: each for name, each in given.items() if each is not None}
        return self.keys.collect(table, ids, padding, **stats)

    def send_keys(self, edge: int, *keys: BatchKeys) -> None:
        """Ask the nodes that hold tables for the rows of keys.

        Args:
            edge: the number of the edge.
            keys: the keys of each table of the edge.

        Example:
            node.send_keys(1, keys)
        """
        self.lookups.send_keys(edge, keys)

    def send_keys_ahead(self, edge: int) -> None:
        """Ask for the rows of the next step, while this one is still computed: in lockstep
        they come after the update of this step.

        Args:
            edge: the number of the edge.

        Example:
            node.send_keys_ahead(1)
        """
        self.lookups.send_keys_ahead(edge, self.next_rows)

    def receive_keys_ahead(self, edge: int) -> None:
        """Wait for the keys that nodes ask for in the next step, and find their rows, while
        gradients of this one are still computed. What the update changes of them is found
        again when the rows are read.

        Args:
            edge: the number of the edge.

        Example:
            node.receive_keys_ahead(1)
        """
        self.lookups.receive_keys_ahead(edge)

    def receive_keys(self, edge: int) -> tuple[AskedKeys, ...]:
        """Wait for the keys that nodes ask for.

        Args:
            edge: the number of the edge.

        Returns:
            The keys of each table of the edge, those of each node apart.

        Example:
            (keys,) = node.receive_keys(1)
        """
        return self.lookups.receive_keys(edge)

    def distributed_lookup_table(self, table: str, keys: BatchKeys | AskedKeys) -> Any:
        """Look up the rows of keys, without changing the table.

        Args:
            table: the name of the table, which this node holds.
            keys: keys that nodes have asked for, or those of this node itself.

        Returns:
            The rows for each node that has asked; of this node's own keys an array
            [n, dim], with rows of zeros behind the n' <= n rows of its keys.

        Example:
            rows = node.distributed_lookup_table("emb.table", keys)
        """
        return self.lookups.look_up(table, keys)

    def send_rows(self, edge: int, *rows: PartsOfRows) -> None:
        """Send nodes the rows that they have asked for.

        Args:
            edge: the number of the edge.
            rows: the rows of each table of the edge.

        Example:
            node.send_rows(2, rows)
        """
        self.lookups.send_rows(edge, rows)

    def receive_rows(self, edge: int, *keys: BatchKeys) -> tuple[Array, ...]:
        """Wait for the rows of keys.

        Args:
            edge: the number of the edge.
            keys: the keys of each table of the edge, as they were sent.

        Returns:
            An array [n, dim] for each table, with rows of zeros behind those of the keys.
            n is one of few sizes, so that functions are compiled for each in the warm-up.

        Example:
            (rows,) = node.receive_rows(2, keys)
        """
        return self.lookups.receive_rows(edge, keys)

    def send_row_gradients(self, edge: int, *keys_and_gradients: Any) -> None:
        """Send the gradients of rows to the nodes that hold them.

        Args:
            edge: the number of the edge.
            keys_and_gradients: the keys of each table of the edge, and the gradients of
                the rows of all of them, of shape [n, dim] as the rows were received.

        Example:
            node.send_row_gradients(3, keys, d_rows)
        """
        self.pushes.send(edge, keys_and_gradients[::2], keys_and_gradients[1::2])

    def receive_row_gradients(self, edge: int) -> tuple[PartsOfRows, ...]:
        """Wait for the gradients of the rows that nodes have asked for.

        Args:
            edge: the number of the edge.

        Returns:
            The gradients of each table of the edge, those of each node apart.

        Example:
            (d_rows,) = node.receive_row_gradients(3)
        """
        return self.pushes.receive(edge)

    def asked_keys(self, message: WorkerMessage) -> tuple[AskedKeys, ...]:
        """Return the keys of a message of one worker, which asks for their rows or brings
        the gradients of these.

        Args:
            message: the message.

        Returns:
            The keys of each table of the edge.

        Example:
            (keys,) = node.asked_keys(message)
        """
        return self.lookups.of_message(message)

    def pushed_rows(self, message: WorkerMessage) -> tuple[PartsOfRows, ...]:
        """Return the gradients of rows that a message of one worker brings.

        Args:
            message: the message.

        Returns:
            The gradients of each table of the edge.

        Raises:
            RunError: for gradients that do not fit the rows.

        Example:
            (d_rows,) = node.pushed_rows(message)
        """
        return self.pushes.of_message(message)

    def sum_by_key(self, *keys_and_gradients: Any) -> Any:
        """Add up the gradients of each key, in the order of the lookups and the nodes.

        Args:
            keys_and_gradients: the keys of each lookup, and the gradients of their rows.

        Returns:
            The sums.

        Raises:
            RunError: for gradients that are not those of the keys.

        Example:
            total = node.sum_by_key(keys, d_rows)
        """
        return self.pushes.sum_by_key(keys_and_gradients[::2], keys_and_gradients[1::2])

    def exact_squares_of_rows(self, table: str, total: KeySums) -> Array:
        """Return the sum of the squares of the sums by key of a table without rounding:
        without those that are dropped because they are not finite.

        Args:
            table: the name of the table, which this node holds.
            total: the sums by key.

        Returns:
            An exact sum, as that of `exact_squares`.

        Raises:
            RunError: sums are not finite, and are not dropped.

        Example:
            squares = node.exact_squares_of_rows("emb.table", total)
        """
        return self.pushes.exact_squares(table, total)

    def update_rows(
        self,
        table: str,
        total: KeySums,
        scale: Any = None,
        limit: float | None = None,
        message: WorkerMessage | None = None,
    ) -> None:
        """Update the rows of keys by the optimizer's rule, at this step's learning rate:
        count the keys, admit them or not, update those that have a row, and forget.

        Args:
            table: the name of the table, which this node holds.
            total: the sum of the gradients of each key.
            scale: a factor of the gradients, such as that of clipping; None for 1.
            limit: clip each element of the sums to this magnitude, before that.
            message: the worker's message with these gradients, whose step decides the
                learning rate; None in lockstep.

        Raises:
            RunError: the table would need more memory than it may use; or gradients, or
                the factor, are not finite, and are not dropped.

        Example:
            node.update_rows("emb.table", total, scale=clip_scale)
        """
        self.pushes.update(table, total, scale, limit, message)
