"""The calls of a node program on rows of sparse tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placer.channel.interface import Array
from placer.runtime.exchange.worker_messages import WorkerMessage

if TYPE_CHECKING:  # only runs with sparse tables import these modules
    from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows
    from placer.runtime.node.collected_keys import CollectedKeys
    from placer.runtime.node.row_lookups import RowLookups
    from placer.runtime.node.row_pushes import RowPushes
    from placer.tables.key_sums import KeySums
    from placer.tables.sparse.batch_keys import BatchKeys


@dataclass(frozen=True, slots=True)
class RowCalls:
    """The calls of a program on rows of sparse tables.

    Example of a node that looks up rows:

        ids, label = node.read("ids", "label")
        keys, position = node.distinct_keys("emb.table", ids)
        node.send_keys(KEYS_TO_SERVERS, keys)
        (rows,) = node.receive_rows(ROWS_FROM_SERVERS, keys)
        loss, d_rows = forward_backward(position, rows, label)
        node.send_row_gradients(ROW_GRADIENTS_TO_SERVERS, keys, d_rows)

    and of a node that holds them:

        (keys,) = node.receive_keys(KEYS_FROM_WORKERS)
        rows = node.distributed_lookup_table("emb.table", keys)
        node.send_rows(ROWS_TO_WORKERS, rows)
        (d_rows,) = node.receive_row_gradients(ROW_GRADIENTS_FROM_WORKERS)
        total = node.sum_by_key(keys, d_rows)
        node.update_rows("emb.table", total)

    Tables over the same keys share these calls, with a tuple of their names:

        keys, position = node.distinct_keys(("wide.table", "deep.table"), ids)
        wide, deep = node.distributed_lookup_table(("wide.table", "deep.table"), keys)
        d_wide, d_deep = node.sum_by_key(keys, d_wide_rows, d_deep_rows)
        node.update_rows(("wide.table", "deep.table"), d_wide, d_deep)

    Attributes:
        keys: collects the keys that the node looks up.
        lookups: requests rows and sends requested rows.
        pushes: sends gradients of rows and applies received gradients.
        next_rows: returns this node's rows of an input in the next step.
    """

    keys: CollectedKeys
    lookups: RowLookups
    pushes: RowPushes
    next_rows: Callable[[str], Array]

    def distinct_keys(
        self,
        tables: str | tuple[str, ...],
        *ids: Any,
        padding: tuple[int | None, ...] = (),
        show: Any = None,
        click: Any = None,
        time: Any = None,
    ) -> tuple[Any, ...]:
        """Collect the distinct keys that this node looks up in tables.

        Args:
            tables: the name of the table, or the names of tables over the same keys.
            ids: arrays of keys, of any shape and integer dtype.
            padding: for each array, the key that marks padding; None without padding.
            show, click: how much each row adds to the shows and clicks of its keys, of
                shape [batch]; by default 1 and 0. They determine the score of a key.
            time: the time of each row in seconds, integers of shape [batch]. If only some of
                the tables have a time, or each has its own, a dict by table, as for `show` and
                `click`.

        Raises:
            RunError: if scores are not finite, or times are not seconds from 0 to 2^32 - 1.

        Returns:
            The keys; and one int32 array per array of `ids`, of the same shape: the index
            of each key among the distinct keys, -1 for padding.

        Example:
            keys, position = node.distinct_keys("emb.table", ids)
        """
        names = _names(tables)
        given = {"show": show, "click": click, "time": time}
        by_table = {
            name: each if isinstance(each, Mapping) else dict.fromkeys(names, each)
            for name, each in given.items()
            if each is not None
        }
        read = {
            (table, name): each[table]
            for table in names
            for name, each in by_table.items()
            if table in each
        }
        return self.keys.collect(names, ids, padding, read)

    def send_keys(self, edge: int, *keys: BatchKeys) -> None:
        """Request the rows of keys from the nodes that hold the tables.

        Args:
            edge: the number of the edge.
            keys: the keys of the edge: for each table, or for tables over the same keys.

        Example:
            node.send_keys(KEYS_TO_SERVERS, keys)
        """
        self.lookups.send_keys(edge, keys)

    def send_keys_ahead(self, edge: int) -> None:
        """Request the rows of the next step while the current step is still computed.

        If the table is synchronous, the rows are sent after the update of the current step.

        Args:
            edge: the number of the edge.

        Example:
            node.send_keys_ahead(KEYS_TO_SERVERS)
        """
        self.lookups.send_keys_ahead(edge, self.next_rows)

    def receive_keys_ahead(self, edge: int) -> None:
        """Wait for the keys requested for the next step, and locate their rows.

        This overlaps with the gradient computation of the current step. Rows that its update
        moves are located again when they are read.

        Args:
            edge: the number of the edge.

        Example:
            node.receive_keys_ahead(KEYS_FROM_WORKERS)
        """
        self.lookups.receive_keys_ahead(edge)

    def receive_keys(self, edge: int) -> tuple[AskedKeys, ...]:
        """Wait for the keys that nodes request.

        Args:
            edge: the number of the edge.

        Returns:
            For each table, or for tables over the same keys, the keys of each node.

        Example:
            (keys,) = node.receive_keys(KEYS_FROM_WORKERS)
        """
        return self.lookups.receive_keys(edge)

    def distributed_lookup_table(
        self, tables: str | tuple[str, ...], keys: BatchKeys | AskedKeys
    ) -> Any:
        """Look up the rows of keys, without changing the tables.

        Args:
            tables: the name of the table, or the names of tables over the same keys. This node
                holds them.
            keys: keys that other nodes have requested, or this node's own keys.

        Returns:
            For requested keys, the rows for each node. For this node's own keys, an array
            [n, dim]; rows of zeros follow the n' <= n rows of the keys. A tuple of these for a
            tuple of names.

        Example:
            rows = node.distributed_lookup_table("emb.table", keys)
        """
        found = self.lookups.look_up(_names(tables), keys)
        return found[0] if isinstance(tables, str) else tuple(found)

    def send_rows(self, edge: int, *rows: PartsOfRows) -> None:
        """Send the requested rows to the nodes.

        Args:
            edge: the number of the edge.
            rows: the rows of each table of the edge.

        Example:
            node.send_rows(ROWS_TO_WORKERS, rows)
        """
        self.lookups.send_rows(edge, rows)

    def receive_rows(self, edge: int, *keys: BatchKeys) -> tuple[Array, ...]:
        """Wait for the rows of keys.

        Args:
            edge: the number of the edge.
            keys: the keys of each table of the edge, as passed to `send_keys`.

        Returns:
            For each table an array [n, dim], in which rows of zeros follow the rows of the
            keys. n is one of a few sizes; the warm-up compiles functions for each.

        Example:
            (rows,) = node.receive_rows(ROWS_FROM_SERVERS, keys)
        """
        return self.lookups.receive_rows(edge, keys)

    def send_row_gradients(self, edge: int, *keys_and_gradients: Any) -> None:
        """Send the gradients of rows to the nodes that hold the rows.

        Args:
            edge: the number of the edge.
            keys_and_gradients: the keys of each lookup, and then the gradients of their rows
                for each table over these keys, of the shape [n, dim] of the received rows.

        Example:
            node.send_row_gradients(ROW_GRADIENTS_TO_SERVERS, keys, d_rows)
        """
        self.pushes.send(edge, keys_and_gradients)

    def receive_row_gradients(self, edge: int) -> tuple[PartsOfRows, ...]:
        """Wait for the gradients of the rows that nodes have requested.

        Args:
            edge: the number of the edge.

        Returns:
            For each table of the edge, the gradients of each node.

        Example:
            (d_rows,) = node.receive_row_gradients(ROW_GRADIENTS_FROM_WORKERS)
        """
        return self.pushes.receive(edge)

    def asked_keys(self, message: WorkerMessage) -> tuple[AskedKeys, ...]:
        """Return the keys in a message of one worker.

        The message requests the rows of the keys, or holds their gradients.

        Args:
            message: the message.

        Returns:
            The keys of each table, or of tables over the same keys.

        Example:
            (keys,) = node.asked_keys(message)
        """
        return self.lookups.of_message(message)

    def pushed_rows(self, message: WorkerMessage) -> tuple[PartsOfRows, ...]:
        """Return the gradients of rows in a message of one worker.

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
            keys_and_gradients: the keys of each lookup, and then the gradients of their rows,
                for each table over these keys.

        Returns:
            The gradient sum of each key; for several tables, a tuple of these.

        Raises:
            RunError: for gradients that do not match the keys.

        Example:
            total = node.sum_by_key(keys, d_rows)
        """
        totals = self.pushes.sum_by_key(keys_and_gradients)
        return totals[0] if len(totals) == 1 else tuple(totals)

    def exact_squares_of_rows(self, table: str, total: KeySums) -> Array:
        """Return the sum of the squares of gradient sums by key, without rounding.

        Sums that are dropped because they are not finite do not count.

        Args:
            table: the name of the table, which this node holds.
            total: the sums by key.

        Returns:
            An exact sum, in the format of `exact_squares`.

        Raises:
            RunError: if a sum is not finite and such sums are not dropped.

        Example:
            squares = node.exact_squares_of_rows("emb.table", total)
        """
        return self.pushes.exact_squares(table, total)

    def update_rows(
        self,
        tables: str | tuple[str, ...],
        *totals: KeySums,
        scale: Any = None,
        limit: float | tuple[float | None, ...] | None = None,
        message: WorkerMessage | None = None,
    ) -> None:
        """Update the rows of keys by the optimizer's rule, at this step's learning rate.

        This counts the keys, creates rows for admitted keys, updates existing rows, and
        forgets old keys.

        Args:
            tables: the name of the table, or the names of tables over the same keys. This node
                holds them.
            totals: for each table, the sum of the gradients of each key.
            scale: a factor for the gradients, for example from clipping: one factor for all
                tables, or a tuple with one for each. None means 1.
            limit: clip each element of the sums to this magnitude before scaling; one for all
                tables, or a tuple.
            message: the worker's message with these gradients; its step determines the
                learning rate. None for a synchronous table.

        Raises:
            RunError: if the table would exceed its memory limit; or if gradients or the
                factor are not finite, and are not dropped.

        Example:
            node.update_rows("emb.table", total, scale=clip_scale)
        """
        names = _names(tables)
        scales, limits = (
            each if isinstance(each, tuple) else (each,) * len(names)
            for each in (scale, limit)
        )
        self.pushes.update(names, totals, scales, limits, message)


def _names(tables: str | tuple[str, ...]) -> tuple[str, ...]:
    return (tables,) if isinstance(tables, str) else tables
