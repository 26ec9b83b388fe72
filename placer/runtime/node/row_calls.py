"""The calls of a node program that concern rows of sparse tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from placer.channel.interface import Array
from placer.errors import RunError
from placer.runtime.exchange.nested_tuples import leaves
from placer.runtime.exchange.worker_messages import WorkerMessage, join_flat, malformed
from placer.runtime.node.microbatches import Microbatches
from placer.tables.key_sums import KeySums

if TYPE_CHECKING:
    from placer.channel.interface import Key
    from placer.runtime.asynchronous.asked_rows import AskedRows
    from placer.runtime.asynchronous.service import Service
    from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows, RowExchange
    from placer.tables.sparse.batch_keys import BatchKeys
    from placer.tables.sparse.table import SparseTable


@dataclass(frozen=True, slots=True)
class _Collected:
    """How the keys of a table are collected: the values that were read, of which the first
    are the keys, which of `show`, `click` and `time` follow, and the padding."""

    names: Sequence[str]
    ids: int
    stats: Sequence[bool]
    padding: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The keys of a step, and their positions."""

    step: int
    keys: BatchKeys
    positions: Sequence[Array]


@dataclass(slots=True, kw_only=True)
class RowCalls(Microbatches):
    """The calls of a node program that concern rows of sparse tables.

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
        row_exchange: the node's end of the edges of rows by key, if the plan has tables.
        row_tables: the sparse tables whose partitions the node holds, by name.
        drops_not_finite: whether gradients of rows with a NaN or an infinity are dropped;
            else they are an error.
        on_warning: receives a warning.
        forced_size: the number of the padded size that rows have, in the warm-up.
    """

    row_exchange: RowExchange | None = None
    row_tables: dict[str, SparseTable] = field(default_factory=dict)
    drops_not_finite: bool = False
    on_warning: Callable[[str], None] = lambda text: None
    forced_size: int | None = None
    most_sizes: int = field(default=1, init=False)
    """How many sizes the rows of a batch had at most, so far."""
    _batch_keys: list[BatchKeys] = field(default_factory=list, init=False)
    """The keys that were collected last, whose rows have no size yet."""
    _read_inputs: dict[int, str] = field(default_factory=dict, init=False)
    """The inputs that the program has read in this step, by the identity of their arrays."""
    _collected: dict[str, _Collected] = field(default_factory=dict, init=False)
    """Of which inputs the keys of each table are."""
    _tables_of: dict[int, list[str]] = field(default_factory=dict, init=False)
    """The tables whose keys are sent on each edge."""
    _ahead: dict[str, _Ahead] = field(default_factory=dict, init=False)
    """The keys of the next step, by table."""
    _sent_ahead: dict[int, int] = field(default_factory=dict, init=False)
    """The step of the keys that were sent ahead on each edge."""
    _asked_ahead: dict[int, tuple[AskedKeys, ...]] = field(
        default_factory=dict, init=False
    )
    """The keys that nodes ask for in the next step, by edge."""
    _has_dropped: set[str] = field(default_factory=set, init=False)
    """The tables of which gradients were dropped."""
    _swept: dict[str, int] = field(default_factory=dict, init=False)
    """The step after which each table has forgotten keys last."""

    def _key(self, edge: int) -> Key:
        raise NotImplementedError

    def _learning_rate(self, table: str, message: WorkerMessage | None) -> float:
        raise NotImplementedError

    def begin_rows(self) -> None:
        """Begin a step: forget the inputs of the step before."""
        self._read_inputs.clear()

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
        ahead = None if self._is_evaluation else self._ahead.pop(table, None)
        if ahead is not None and ahead.step == self._row_step:
            self._batch_keys.append(ahead.keys)
            return ahead.keys, *ahead.positions
        given = *ids, *(each for each in (show, click, time) if each is not None)
        names = [self._read_inputs.get(id(each), "") for each in given]
        if all(names) and not self._is_evaluation:
            stats = [each is not None for each in (show, click, time)]
            self._collected[table] = _Collected(names, len(ids), stats, padding)
        keys, positions = self._collect(table, ids, padding, show, click, time)
        self._batch_keys.append(keys)
        return keys, *positions

    def _collect(
        self,
        table: str,
        ids: Sequence[Any],
        padding: tuple[int | None, ...],
        show: Any,
        click: Any,
        time: Any,
    ) -> tuple[BatchKeys, list[Array]]:
        from placer.tables.sparse.batch_keys import collect_keys
        from placer.tables.sparse.checks import check_scores, check_times

        exchange = self._row_exchange()
        planned = exchange.tables[table]
        arrays = [np.asarray(each) for each in ids]
        holders, partitions = len(planned.holders), planned.settings.partitions
        scoring, scores = planned.settings.score, None
        if scoring is not None and not (show is None and click is None):
            shows = np.asarray(1 if show is None else show, np.float32).reshape(-1)
            clicks = np.asarray(0 if click is None else click, np.float32).reshape(-1)
            scores = (shows - clicks) * scoring.no_click + clicks * scoring.click
            check_scores(table, scores)
        times = None if time is None else np.asarray(time).reshape(-1)
        if times is not None:
            check_times(table, times)
        keys, positions = collect_keys(
            arrays, holders, partitions, padding, scores, times
        )
        keys.table = table
        return keys, positions

    def send_keys(self, edge: int, *keys: BatchKeys) -> None:
        """Ask the nodes that hold tables for the rows of keys.

        Args:
            edge: the number of the edge.
            keys: the keys of each table of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_keys(1, keys)
        """
        self._tables_of[edge] = [each.table for each in keys]
        if self._sent_ahead.get(edge) == self._row_step and not self._is_evaluation:
            return
        end = self._asked_rows(edge)
        if end is not None:
            end.send_keys(self._row_step, keys)
        else:
            self._row_exchange().send_keys(self._key(edge), keys)

    def send_keys_ahead(self, edge: int) -> None:
        """Ask for the rows of the next step, while this one is still computed: in lockstep
        they come after the update of this step.

        Args:
            edge: the number of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_keys_ahead(1)
        """
        end, step = self._asked_rows(edge), self._row_step + 1
        if self._is_last_step or (end is not None and end.mode.waits_for_own):
            return
        found = []
        for table in self._tables_of[edge]:
            known = self._collected[table]
            arrays = [self._next_rows(name) for name in known.names]
            ids, rest = arrays[: known.ids], iter(arrays[known.ids :])
            stats = [next(rest) if given else None for given in known.stats]
            keys, positions = self._collect(table, ids, known.padding, *stats)
            self._ahead[table] = _Ahead(step, keys, positions)
            found.append(keys)
        self._sent_ahead[edge] = step
        if end is not None:
            end.send_keys(step, found)
        else:
            self._row_exchange().send_keys(self._key(edge)._replace(step=step), found)

    def receive_keys_ahead(self, edge: int) -> None:
        """Wait for the keys that nodes ask for in the next step, and find their rows, while
        gradients of this one are still computed. What the update changes of them is found
        again when the rows are read.

        Args:
            edge: the number of the edge.

        Raises:
            RunError: as `receive_keys`.

        Example:
            node.receive_keys_ahead(1)
        """
        if self._is_last_step:
            return
        key = self._key(edge)._replace(step=self._row_step + 1)
        tables = [
            self.row_tables[name] for name in self._row_exchange().tables_of(edge)
        ]
        self._asked_ahead[edge] = tuple(
            replace(asked, found=tuple(table.find(part.keys) for part in asked.parts))
            for table, asked in zip(
                tables, self._row_exchange().receive_keys(key), strict=True
            )
        )

    def receive_keys(self, edge: int) -> tuple[AskedKeys, ...]:
        """Wait for the keys that nodes ask for.

        Args:
            edge: the number of the edge.

        Returns:
            The keys of each table of the edge, those of each node apart.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            (keys,) = node.receive_keys(1)
        """
        ahead = self._asked_ahead.pop(edge, None)
        return ahead or self._row_exchange().receive_keys(self._key(edge))

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
        from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows

        held, arena = self.row_tables[table], self._row_exchange().arena
        dim = held.settings.dim
        if isinstance(keys, AskedKeys):
            parts = []
            for part, found in zip_longest(keys.parts, keys.found):
                out = arena.allocate(held.dtype, (part.keys.size, dim))
                parts.append(held.pull(part.keys, out, found))
            return PartsOfRows(tuple(parts))
        self._choose_sizes()
        count = keys.keys.size
        rows = arena.allocate(held.dtype, (keys.size, dim))
        held.pull(keys.keys, rows[:count])
        rows[count:] = 0
        return rows

    def send_rows(self, edge: int, *rows: PartsOfRows) -> None:
        """Send nodes the rows that they have asked for.

        Args:
            edge: the number of the edge.
            rows: the rows of each table of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_rows(2, rows)
        """
        self._row_exchange().send_rows(self._key(edge), rows)

    def receive_rows(self, edge: int, *keys: BatchKeys) -> tuple[Array, ...]:
        """Wait for the rows of keys.

        Args:
            edge: the number of the edge.
            keys: the keys of each table of the edge, as they were sent.

        Returns:
            An array [n, dim] for each table, with rows of zeros behind those of the keys.
            n is one of few sizes, so that functions are compiled for each in the warm-up.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            (rows,) = node.receive_rows(2, keys)
        """
        self._choose_sizes()
        end = self._asked_rows(edge)
        if end is not None:
            return end.receive_rows(keys)
        return self._row_exchange().receive_rows(self._key(edge), keys)

    def send_row_gradients(self, edge: int, *keys_and_gradients: Any) -> None:
        """Send the gradients of rows to the nodes that hold them.

        Args:
            edge: the number of the edge.
            keys_and_gradients: the keys of each table of the edge, and the gradients of
                the rows of all of them, of shape [n, dim] as the rows were received.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_row_gradients(3, keys, d_rows)
        """
        keys, gradients = keys_and_gradients[::2], keys_and_gradients[1::2]
        arrays = [np.asarray(each) for each in gradients]
        end = self._asked_rows(edge)
        if end is not None:
            end.send_gradients(self._row_step, self._rows_of_step, keys, arrays)
        else:
            self._row_exchange().send_gradients(self._key(edge), keys, arrays)

    def receive_row_gradients(self, edge: int) -> tuple[PartsOfRows, ...]:
        """Wait for the gradients of the rows that nodes have asked for.

        Args:
            edge: the number of the edge.

        Returns:
            The gradients of each table of the edge, those of each node apart.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            (d_rows,) = node.receive_row_gradients(3)
        """
        return self._row_exchange().receive_gradients(self._key(edge))

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
        from placer.runtime.exchange.row_exchange import AskedKeys

        return tuple(AskedKeys((part,)) for part in message.keys)

    def answer_rows(self, message: WorkerMessage, *rows: PartsOfRows) -> None:
        """Send the worker that a message is from the rows that it asks for.

        Args:
            message: the message with the keys.
            rows: the rows of each table of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.answer_rows(message, rows)
        """
        self._service().answer_rows(message, [each.parts[0] for each in rows])

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
        from placer.runtime.exchange.row_exchange import PartsOfRows

        values = self._row_exchange().edges[message.edge].values
        (pieces,) = message.parts
        arrays = join_flat(pieces, [np.dtype(value.dtype) for value in values])
        if arrays is None:
            raise malformed(message)
        found = []
        for value, array, part in zip(values, arrays, message.keys, strict=True):
            count, dim = part.keys.size, int(value.shape[1])
            if array.size != count * dim:
                raise malformed(message)
            found.append(PartsOfRows((array.reshape(count, dim),)))
        return tuple(found)

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
        from placer.tables.sparse.key_sums import sum_by_key

        terms: list[KeySums] = []
        lookups = zip(keys_and_gradients[::2], keys_and_gradients[1::2], strict=True)
        for keys, gradients in lookups:
            if not hasattr(keys, "parts"):  # of this node itself
                own = np.asarray(gradients)[: keys.keys.size]
                terms.append(KeySums(keys.part, own))
                continue
            for part, rows in zip(keys.parts, gradients.parts, strict=True):
                if len(rows) != part.keys.size:
                    raise RunError(
                        f"there are {len(rows)} gradients of {part.keys.size} rows",
                        hint="give every node of a run the same build",
                    )
                terms.append(KeySums(part, rows))
        return sum_by_key(terms)

    def exact_squares(self, *gradients: Any) -> Array:
        """Return the sum of the squares of gradients without rounding, for a norm that
        does not depend on the number of servers.

        Args:
            gradients: arrays of a floating-point dtype, or trees of these.

        Returns:
            An exact sum, int64 of shape [134]: see `placer.tables.exact_squares`.

        Example:
            squares = node.exact_squares(g.h1.w, g.h1.b)
        """
        from placer.tables.exact_squares import exact_squares

        return exact_squares([np.asarray(each) for each in leaves(gradients)])

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
        from placer.tables.exact_squares import exact_squares

        gradients = total.gradients
        bad = self.row_tables[table].find_not_finite(
            total.part.keys,
            total.gradients,
            drop_not_finite=self.drops_not_finite,
            where=f"in step {self._row_step}",
        )
        if bad is not None:
            gradients = gradients[~bad]
        return exact_squares([gradients])

    def rounded_sum(self, *sums: Array, dtype: str) -> Array:
        """Return the sum of exact sums, rounded once.

        Args:
            sums: exact sums, as those of `exact_squares`.
            dtype: the dtype of the result.

        Returns:
            A scalar.

        Example:
            clip_square = node.rounded_sum(squares, emb_squares, dtype="float32")
        """
        from placer.tables.exact_squares import rounded_sum

        return rounded_sum(sums, dtype)

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
        held = self.row_tables[table]
        # Without lockstep a table is at the step that all workers have done.
        step = draw = self._row_step
        if message is not None:
            sources = self._row_exchange().edges[message.edge].sources
            step = message.least
            draw = message.step * len(sources) + sources.index(message.worker)
        part, gradients, scoring = total.part, total.gradients, held.settings.score
        if limit is not None:
            gradients = np.clip(gradients, -limit, limit)
        scores = part.scores
        if scoring is not None and scores is None:
            scores = part.occurrences.astype(np.float32) * np.float32(scoring.no_click)
        where = f"in step {step}"
        if message is not None:
            where = f"in step {message.step} of {message.worker}"
        pushed = held.push(
            part.keys,
            gradients,
            learning_rate=self._learning_rate(table, message),
            step=step,
            occurrences=part.occurrences,
            scores=scores,
            times=part.times,
            scale=1.0 if scale is None else float(scale),
            draw=draw,
            drop_not_finite=self.drops_not_finite,
            where=where,
        )
        if pushed.not_finite and table not in self._has_dropped:
            self._has_dropped.add(table)
            self.on_warning(
                f"table {table}: the gradients of {pushed.not_finite:,} of"
                f" {part.keys.size:,} keys are not finite {where}; such gradients are"
                " dropped, and the run continues because of train.nan: warn"
            )
        held.note_time(part.now)
        self.forget_up_to(table, step)

    def forget_up_to(self, table: str, step: int) -> None:
        """Let a table forget keys after each step up to this one, those after which it has
        done so left out."""
        held = self.row_tables[table]
        for swept in range(self._swept.get(table, 0) + 1, step + 1):
            held.forget(swept, held.latest)
        self._swept[table] = step

    def resume_rows(self, step: int) -> None:
        """Continue after a step of the tables, after which they have forgotten keys."""
        self._swept = dict.fromkeys(self.row_tables, step)

    @property
    def _row_step(self) -> int:
        raise NotImplementedError

    @property
    def _is_evaluation(self) -> bool:
        raise NotImplementedError

    @property
    def _is_last_step(self) -> bool:
        raise NotImplementedError

    def _next_rows(self, value: str) -> Array:
        """Return this node's rows of an input in the next step."""
        raise NotImplementedError

    @property
    def _rows_of_step(self) -> tuple[int, int]:
        """The rows of the current step that this node computes, and those of its batch."""
        raise NotImplementedError

    def _asked_rows(self, edge: int) -> AskedRows | None:
        """Return the node's end of an edge without lockstep."""
        raise NotImplementedError

    def _service(self) -> Service:
        raise NotImplementedError

    def _row_exchange(self) -> RowExchange:
        assert self.row_exchange is not None
        return self.row_exchange

    def _choose_sizes(self) -> None:
        """Choose how many rows the arrays of the keys have that were collected last: all
        have a size of the same number, so that functions of several tables are compiled
        for few sizes."""
        if not self._batch_keys:
            return
        number = self.forced_size
        if number is None:
            number = max(each.least_size for each in self._batch_keys)
        for each in self._batch_keys:
            each.choose_size(number)
            self.most_sizes = max(self.most_sizes, len(each.sizes))
        self._batch_keys.clear()
