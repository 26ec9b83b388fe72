"""The rows of a sequence are read ahead of the steps of a run."""

import numpy as np

from placer.place.layouts.partition import RowShard
from placer.plan.settings.data.source import Data
from placer.readers import Column, Order, open_source
from placer.runtime.batches.batches import Batches

MODULE = """\
import threading

class Rows:
    def __init__(self):
        self.read = []

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i >= 6:
            raise ValueError("no step of the run needs this row")
        self.read.append((i, threading.current_thread().name))
        return {"x": i}

def rows():
    return Rows()
"""
SHARD = RowShard((0,), 1)


def test_rows_are_read_by_a_thread_up_to_the_last_step(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    rows = open_source(Data("python:m:rows"), [Column("x", "int32", ())], tmp_path)
    order = Order(rows.rows, 2, False, 0, "drop")
    batches = Batches(order, rows, last_step=3)
    batches.begin(0, [SHARD], 1)
    taken = [batches.take((1, step), SHARD, None, 1)["x"] for step in range(3)]
    batches.close()
    np.testing.assert_array_equal(np.concatenate(taken), np.arange(6))
    assert rows.dataset.read == [(i, "read ahead") for i in range(6)]
