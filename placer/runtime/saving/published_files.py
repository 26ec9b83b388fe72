"""Writes one node's files of a publication: rows of sparse tables, and removed keys.

A node without access to the control node's folder writes them to a temporary folder, and sends
them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np

from placer.channel.interface import Array
from placer.checkpoint.finite import find_row_not_finite
from placer.checkpoint.manifest import Stored
from placer.errors import CheckpointError
from placer.place.node_kinds import NodeId
from placer.plan.plan import Plan
from placer.publishing.manifest import PublishedTable
from placer.publishing.rows_file import RowsFile, write_removed
from placer.runtime.saving.problems import describe, is_full
from placer.runtime.saving.row_files import Saves, held_partitions

_NONE = np.empty(0, np.uint64)


class Published(msgspec.Struct, frozen=True):
    """A node's report about its files of a publication.

    Attributes:
        files: the files, by name.
        tables: the part of the node in each sparse table, by name.
        newest: the latest time of the training data, in seconds; 0 without times.
        sent: whether the files follow as messages.
        problem: why the files could not be written; empty if they could.
        is_full: whether the disk is full.
    """

    files: dict[str, Stored] = {}
    tables: dict[str, PublishedTable] = {}
    newest: int = 0
    sent: bool = False
    problem: str = ""
    is_full: bool = False


class NodeRows:
    """The files of one node. An error becomes the problem of its report.

    Args:
        plan: the plan.
        node: the node.
        keys: the dtype of the keys of each published table, by name.
        folder: the folder to write to; None for a temporary one, whose files are sent.
        since: only rows that were seen in this step or later are written; 0 for all.
        finite: whether all rows must be finite.

    Attributes:
        folder: the folder of the files.
        problem: why the files cannot be written; empty if they can.
    """

    def __init__(
        self,
        plan: Plan,
        node: str,
        keys: Mapping[str, str],
        folder: Path | None,
        since: int,
        *,
        finite: bool,
    ) -> None:
        self._keys, self._since, self._finite = keys, since, finite
        self._stem, self._is_sent = NodeId(node).stem, folder is None
        self._contexts = ExitStack()
        self._files: dict[str, RowsFile] = {}
        self.problem, self._is_full = "", False
        with self._noting_problems():
            if folder is None:
                name = self._contexts.enter_context(tempfile.TemporaryDirectory())
                folder = Path(name)
            self.folder = folder
            folder.mkdir(exist_ok=True)
            for table in plan.sparse_tables:
                if table.name in keys and held_partitions(table, node):
                    path = folder / f"{table.name}.{self._stem}.parquet"
                    dim, dtype = table.settings.dim, table.dtype
                    file = RowsFile(path, dim, dtype, keys[table.name])
                    self._files[table.name] = self._contexts.enter_context(file)

    def close(self) -> None:
        """Close the files, and remove a temporary folder."""
        self._contexts.close()

    def fail(self, problem: str) -> None:
        """Note a problem, unless there is one already or the text is empty."""
        self.problem = self.problem or problem

    def add(self, table: str, arrays: Mapping[str, Array]) -> None:
        """Write the rows of a partition. `arrays` are those of `TableSave.partition`."""
        if self.problem or table not in self._files:
            return
        with self._noting_problems():
            keys, rows = arrays["keys"], arrays["values"][:, : self._files[table].dim]
            if self._since and "seen" in arrays:  # a checkpoint has all rows
                passed = arrays["seen"] - np.uint32(self._since & 0xFFFFFFFF)
                chosen = np.flatnonzero(passed < 1 << 31)
                keys, rows = keys[chosen], rows[chosen]
            values = {"values": rows}
            if self._finite and (problem := find_row_not_finite(table, values)):
                raise CheckpointError(problem)
            self._files[table].add(keys, rows)

    def add_all(self, saves: Saves) -> None:
        """Write the rows of saves that no checkpoint reads."""
        with self._noting_problems():
            for table, save in saves.items():
                for _, arrays in save.partitions():
                    self.add(table, arrays)

    def finish(self, removed: Mapping[str, Array], newest: int) -> Published:
        """Write the removed keys, and finish all files. Return the report of the node."""
        files: dict[str, Stored] = {}
        tables: dict[str, PublishedTable] = {}
        with self._noting_problems():
            for name, file in self._files.items():
                if self.problem:
                    break
                files[file.path.name] = file.finish()
                gone: tuple[str, ...] = ()
                keys = removed.get(name, _NONE)
                if keys.size:
                    path = file.path.with_suffix(".removed.parquet")
                    files[path.name] = write_removed(path, self._keys[name], keys)
                    gone = (path.name,)
                named = (file.path.name,)
                tables[name] = PublishedTable(
                    file.dim, file.dtype, named, gone, file.rows, keys.size
                )
        if self.problem:
            return Published(problem=self.problem, is_full=self._is_full)
        return Published(files, tables, newest, sent=self._is_sent)

    @contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a problem of a publication does not end the run
            self.problem, self._is_full = describe(error), is_full(error)
