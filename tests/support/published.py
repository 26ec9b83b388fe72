"""Reads the publications of a run while it goes on, and compares them with checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.testing import assert_array_equal

import placer
from placer.checkpoint.reading import Checkpoint
from placer.checkpoint.writing import write_tensors
from placer.publishing.code import prepare_code
from placer.publishing.folder import commit, temporary_folder
from placer.publishing.manifest import PARAMETERS, Publication, PublishedTable
from placer.publishing.rows_file import RowsFile, write_removed
from placer.publishing.served import Served, Table, load, look_up_rows
from placer.runtime.control.events import Event, PublicationWritten
from placer.runtime.saving.row_files import read_partitions

TABLES = {
    "always": {},
    "counted": {"admit": {"count": 2}, "forget": {"unseen_steps": 2, "every": 2}},
    "full": {"capacity": 24, "admit": {"bloom": {"count": 2, "bytes": 4096}}},
    "timed": {"forget": {"unseen_seconds": 9, "time": "time", "every": 2}},
}


def build_published(folder, name="b", *, table="always", workers=1, servers=2, **more):
    rng = np.random.default_rng(0)
    keys = rng.zipf(1.3, (64, 3)).astype(np.uint64) * np.uint64(2**60 + 1)
    y, time = rng.integers(0, 3, 64).astype(np.int32), 1000 + np.arange(64)
    x = rng.random((64, 4), np.float32)
    np.savez(folder / "rows.npz", keys=keys.view("i8"), y=y, time=time, x=x)
    publish = {"every": 1, "keep": 99, **more.pop("publish", {})}
    update = more.pop("update", "sync")
    norm = "batch_norm" if update == "sync" else "layer_norm"
    optimizer = {"op": "adam", "learning_rate": 0.05, "update": update}
    embedding = {"op": "embedding", "sparse": True, "dim": 4, "partitions": 8}
    embedding |= TABLES[table]
    kinds = {"worker": workers, "ps": servers}
    content = {
        "name": "published",
        "nodes": {kind: {"count": n} for kind, n in kinds.items() if n},
        "inputs": {"keys": "int64[batch, 3]", "y": "int32[batch]"},
        "data": {"train": {"source": "npz:rows.npz", "batch": 16}},
        "graph": [
            {"name": "emb", "in": "keys", **embedding},
            {"name": "flat", "op": "flatten", "in": "emb"},
            {"name": "normal", "op": norm, "in": "flat"},
            {"name": "z", "op": "fc", "in": "normal", "size": 3},
            {"name": "p", "op": "softmax", "in": "z"},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
        "train": {
            "minimize": "loss",
            "epochs": 3,
            "optimizer": optimizer,
            "publish": publish,
            **more,
        },
        "predict": {"outputs": ["p"]},
    }
    if table == "timed":
        content["inputs"]["time"] = "int64[batch]"
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    placer.compile(file, folder / name)
    return folder / name


class Follower:
    """A reader that refreshes at each publication, as the `watch` of a run.

    `states` has the parameters and the rows of each publication, by its number.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.served: Served | None = None
        self.events: list[PublicationWritten] = []
        self.warnings: list[str] = []
        self.states: dict[int, tuple[int, dict[str, Any], dict[str, Any]]] = {}

    def __call__(self, event: Event) -> None:
        if type(event).__name__ == "NodeWarning":
            self.warnings.append(event.message)
        if not isinstance(event, PublicationWritten):
            return
        self.events.append(event)
        if self.served is None:
            self.served = load(self.folder)
        state = self.served.refresh()
        # An event of another process may come after a further publication.
        assert state.number >= event.number
        params, tables = self.served.current()
        rows = {name: rows_of_table(table) for name, table in tables.items()}
        self.states[state.number] = state.step, params, rows

    def check(self, checkpoints: Path) -> None:
        """Compare each publication with the checkpoint of its step."""
        assert self.states
        for step, params, tables in self.states.values():
            wanted, rows = content_of(checkpoints / f"step-{step:06d}")
            assert params.keys() == wanted.keys()
            for name, array in wanted.items():
                assert_array_equal(params[name], array, name)
            assert tables == rows, step

    @property
    def kinds(self) -> list[tuple[bool, int]]:
        """Whether each publication was a base, and its step."""
        return [(event.is_base, event.step) for event in self.events]


def rows_of_table(table: Table) -> dict[int, tuple[float, ...]]:
    """Return all rows of a table by key."""
    keys = table.keys
    if table.changes is not None:
        keys = np.union1d(keys, table.changes.keys)
    nan = look_up_rows(
        table, keys, lambda absent: np.full((absent.size, table.rows.shape[1]), np.nan)
    )
    there = ~np.isnan(nan).any(axis=1)
    rows = map(tuple, nan[there].tolist())
    return dict(zip(keys[there].tolist(), rows, strict=True))


def content_of(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of a checkpoint, and the rows of its tables by key."""
    opened = Checkpoint(checkpoint)
    params = {}
    for name, stored in opened.manifest.parameters.items():
        array = np.empty(stored.shape, stored.dtype)
        view = array.reshape(-1).view(np.uint8).data
        opened.read(opened.wanted(name, stored.evaluation, 0, view))
        params[name] = array
    tables: dict[str, Any] = {}
    for table, stored in opened.manifest.sparse.items():
        numbers = ((table, number) for number in range(stored.partitions))
        tables[table] = {}
        for arrays in read_partitions(opened, numbers, ("keys", "values"), finite=True):
            rows = map(tuple, arrays["values"][:, : stored.dim].tolist())
            tables[table] |= zip(arrays["keys"].tolist(), rows, strict=True)
    return params, tables


CODE = {"model.py": b"model = 1\n", "served.py": b"", "ops/a.py": b"one"}


class Publisher:
    """Writes publications of one table `t` of rows of `dim` numbers, from Python dicts."""

    def __init__(self, folder: Path, dim: int = 3) -> None:
        self.folder, self.dim, self.before = folder, dim, None
        folder.mkdir(exist_ok=True)
        self.code = prepare_code(folder, CODE, [])

    def publish(self, rows, removed=(), *, is_base=False, step=None, **changes):
        """Write the next publication; return its folder."""
        before = self.before
        number = before.number + 1 if before else 1
        is_base = is_base or before is None
        temporary = temporary_folder(self.folder, number, "test")
        temporary.mkdir()
        files, names, gone = {}, [], []
        parts = [sorted(rows)[i::2] for i in range(2)]
        for part, keys in enumerate(parts):
            name = f"t.ps-{part}.parquet"
            with RowsFile(temporary / name, self.dim, "float32", "int64") as file:
                values = np.array([rows[key] for key in keys], np.float32)
                values = values.reshape(-1, self.dim)
                file.add(np.array(keys, np.uint64), values)
                files[name] = file.finish()
            names.append(name)
        if removed and not is_base:
            keys = np.array(sorted(removed), np.uint64)
            path = temporary / "t.ps-0.removed.parquet"
            files[path.name] = write_removed(path, "int64", keys)
            gone.append(path.name)
        parameters = {"w": np.array([number], np.float32)}
        files[PARAMETERS] = write_tensors(temporary, PARAMETERS, parameters)
        counts = len(rows), len(removed) if gone else 0
        table = PublishedTable(self.dim, "float32", (*names,), (*gone,), *counts)
        fields = {
            "number": number,
            "id": f"id-{number}",
            "before": before.number if before else None,
            "before_id": before.id if before else "",
            "base": number if is_base else before.base,
            "step": 10 * number if step is None else step,
            "epoch": 1,
            "newest": None,
            "written": 1.5,
            "code": self.code,
            "tables": {"t": table},
            "files": files,
        }
        self.before = Publication(**{**fields, **changes})
        return commit(self.folder, temporary, self.before)
