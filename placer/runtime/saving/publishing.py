"""A publication of one step on one node, from the step until its files are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placer.channel.interface import Array
from placer.errors import RunError
from placer.runtime.saving.published_files import NodeRows
from placer.runtime.saving.row_files import Saves

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable


@dataclass(frozen=True, slots=True)
class Decided:
    """The control node's decision about a publication.

    Attributes:
        number: the number of the publication.
        id: a random text that identifies it.
        base: the number of its base; its own number if it is a base.
        since: a delta has the rows that were seen in this step or later; 0 for a base.
    """

    number: int
    id: str
    base: int
    since: int

    @property
    def is_base(self) -> bool:
        """Whether the publication has all rows."""
        return self.base == self.number


@dataclass(slots=True)
class Publishing:
    """A publication of one step on one node.

    Attributes:
        count: how many publications the run has begun; the same number on all nodes.
        step: its step.
        epoch: the epoch or pass of the step.
        decided: the decision of the control node.
        is_discarded: whether it is not committed, because the loss is not finite; only on the
            control node.
        removed: the keys that were removed since the last publication, by table.
        values: copies of the dense blocks of the node, by parameter and number of the holder.
        newest: the latest time of the training data, in seconds; 0 without times.
        make_rows: creates the files of rows, in the thread that writes.
        finish: finishes the files, and on the control node commits the publication.
        saves: the running saves of sparse tables, unless a checkpoint reads the tables.
        problem: why the saves could not begin; empty if they could.
        contexts: ends the saves.
    """

    count: int
    step: int
    epoch: int
    decided: Decided
    is_discarded: bool
    removed: Mapping[str, Array]
    values: Mapping[tuple[str, int], Array]
    newest: int
    make_rows: Callable[[Publishing], NodeRows]
    finish: Callable[[Publishing, NodeRows], None]
    saves: Saves = field(default_factory=dict)
    problem: str = ""
    contexts: ExitStack = field(default_factory=ExitStack)

    def begin_saves(self, tables: Mapping[str, SparseTable]) -> None:
        """Begin to save the published tables of the node, for a publication without a checkpoint."""
        since = self.decided.since or None
        try:
            self.saves = {
                name: self.contexts.enter_context(
                    table.begin_save(since=since, values_only=True)
                )
                for name, table in tables.items()
            }
        except RunError as error:  # a table has not enough memory for a save
            self.problem = error.message

    def write(self) -> None:
        """Write the publication, in the thread, when no checkpoint is due at the step."""
        rows = self.make_rows(self)
        try:
            rows.fail(self.problem)
            rows.add_all(self.saves)
            self.contexts.close()
            self.finish(self, rows)
        finally:
            self.contexts.close()
            rows.close()
