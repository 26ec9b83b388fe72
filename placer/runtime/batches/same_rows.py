"""Checks that all processes read the same rows of a source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from placer.channel.interface import Channel, Key
from placer.errors import RunError
from placer.plan.plan import Plan
from placer.plan.settings.data.source import Data
from placer.readers import Digests, PieceRows, Rows
from placer.runtime.batches.opened_sources import (
    EVALUATION,
    PREDICTION,
    TRAINING,
    readers_of,
)
from placer.runtime.control.barrier import ROWS, receive_json, send_json
from placer.runtime.control.differing import list_nodes, nodes_by_value

_HINT = (
    "make the source return the same rows in every process: sort the items of a set or a"
    " folder, and seed random numbers with the row number"
)
_FILE_HINT = (
    "copy the file again: with a window, all processes must read identical files"
)

_LANE_HINT = "from one mark, the function must yield the same rows in every process"


def compare_rows(
    plan: Plan,
    channel: Channel,
    phase: str,
    rows: Rows | PieceRows | None,
    data: Data | None = None,
    *,
    keep: bool = False,
) -> Digests | None:
    """Compare the rows of all processes on the control node.

    The nodes of a process share its rows; its first reader sends the digests. Call this
    after the handshake, so that all nodes have the same number of rows.

    Args:
        plan: the plan.
        channel: the node's channel.
        phase: TRAINING, EVALUATION or PREDICTION.
        rows: the rows that this node reads in the phase, if any.
        data: the source, if it is not the source in the plan.
        keep: whether the control node needs the digests, even of a single process.

    Returns:
        On the control node, the digests of all inputs. None on other nodes, and if a
        single process reads and `keep` is false.

    Raises:
        RunError: on the control node, if rows differ. This aborts the run on all nodes.
    """
    readers = {name: nodes[0].name for name, nodes in readers_of(plan, phase).items()}
    if not readers or (len(readers) < 2 and not keep):
        return None
    key = Key(ROWS, (TRAINING, EVALUATION, PREDICTION).index(phase))
    own = None
    if rows is not None and channel.node in readers.values():
        own = rows.digests()
    if channel.node != plan.control:
        if own is not None:
            send_json(channel, plan.control, key, asdict(own))
        return None
    digests = {
        process: own
        if node == channel.node and own is not None
        else receive_json(channel, node, key, Digests)
        for process, node in readers.items()
    }
    if data is None:
        data = plan.train if phase == TRAINING else plan.evaluation
    assert data is not None
    check_same_rows(data, phase, digests)
    return merge_digests(digests.values())


def merge_digests(digests: Iterable[Digests]) -> Digests:
    """Merge the digests of several processes. Inputs in common must have equal digests."""
    columns: dict[str, tuple[int, ...]] = {}
    whole: dict[str, int] = {}
    rows: tuple[int, ...] = ()
    file: int | None = None
    for each in digests:
        rows = rows or each.rows
        columns |= each.columns
        whole |= each.whole
        file = each.file if file is None else file
    return Digests(rows, columns, whole, file)


def check_same_rows(data: Data, phase: str, digests: Mapping[str, Digests]) -> None:
    """Raise RunError if digests differ between nodes.

    The message names the first differing row and column if single rows were compared.
    Otherwise it names the column or, with a window, the file.

    Args:
        data: the source.
        phase: TRAINING or EVALUATION.
        digests: the digests of each process.
    """
    for where, column, values in _comparisons(digests):
        source_column = (data.columns or {}).get(column, column)
        if not isinstance(source_column, str):
            source_column = ", ".join(source_column)
        _check_same(data, phase, f"{where} column '{source_column}'", values, _HINT)
    files = {n: d.file for n, d in digests.items() if d.file is not None}
    _check_same(data, phase, "the file", files, _FILE_HINT)


def check_same_lanes(
    data: Data, epoch: int, digests: Mapping[str, Mapping[int, Mapping[str, int]]]
) -> None:
    """Raise RunError if processes that read the same lane of a stream have other rows.

    The message names the lane, the column and the processes.

    Args:
        data: the source.
        epoch: the number of the pass that has ended.
        digests: the digests of each process, by lane and input.
    """
    lanes = {lane: None for each in digests.values() for lane in each}
    for lane in sorted(lanes):
        own = {node: each[lane] for node, each in digests.items() if lane in each}
        for name in dict.fromkeys(name for each in own.values() for name in each):
            values = {node: each[name] for node, each in own.items() if name in each}
            column = (data.columns or {}).get(name, name)
            what = f"column '{column}' of lane {lane} in pass {epoch}"
            _check_same(data, TRAINING, what, values, _LANE_HINT)


def _check_same(
    data: Data, phase: str, what: str, values: Mapping[str, int], hint: str
) -> None:
    """Raise RunError if the digest of `what` differs between nodes."""
    nodes = nodes_by_value(values)
    if len(nodes) > 1:
        first_group, *other_groups = (list_nodes(group) for group in nodes.values())
        raise RunError(
            f"the nodes do not read the same {phase} data: {data.source}: {what} on"
            f" {' and on '.join(other_groups)} differs from that on {first_group}",
            hint=hint,
        )


def _comparisons(
    digests: Mapping[str, Digests],
) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Yield the position in the source, the input, and the digest of each node. Single
    rows come first, in order, and whole columns last."""
    nodes = digests.items()
    for index, row in enumerate(next(iter(digests.values())).rows):
        for name in dict.fromkeys(n for d in digests.values() for n in d.columns):
            values = {n: d.columns[name][index] for n, d in nodes if name in d.columns}
            yield f"row {row} of", name, values
    # The single rows are equal on all nodes, or only one node reads the input.
    for name in dict.fromkeys(n for d in digests.values() for n in d.whole):
        values = {n: d.whole[name] for n, d in nodes if name in d.whole}
        yield "some row of", name, values
