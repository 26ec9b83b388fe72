"""The parts of a node that concern rows of sparse tables."""

from __future__ import annotations

from dataclasses import dataclass

from placer.runtime.node.collected_keys import CollectedKeys
from placer.runtime.node.row_lookups import RowLookups
from placer.runtime.node.row_pushes import RowPushes


@dataclass(frozen=True, slots=True)
class RowCalls:
    """The calls of a program on rows of sparse tables; `Node` documents them.

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
    """

    keys: CollectedKeys
    lookups: RowLookups
    pushes: RowPushes
