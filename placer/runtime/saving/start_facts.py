"""Collects facts about the start of a run that checkpoints store and resumed runs compare.

The bits of a result depend on the order of all sums, and therefore on the placement. They
also depend on the versions of packages, the processor and the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from placer.checkpoint.manifest import Machine, StoredData
from placer.plan.folder import read_file
from placer.plan.plan import Edge, Plan, SparseTable, Table, sha256
from placer.plan.settings.data.source import Data, RowSource
from placer.readers import Digests
from placer.runtime.batches.batches import Batches
from placer.runtime.control.barrier import MACHINES, barrier
from placer.runtime.control.execution import Execution
from placer.runtime.control.versions import package_versions
from placer.runtime.exchange.devices import Devices
from placer.runtime.saving.code_digest import code_digest
from placer.system.caches.compilation import processor
from placer.system.cores import xla_threads

AnyTable = TypeVar("AnyTable", Table, SparseTable)

COMPARABLE: Final = "trees-2:"
"""The prefix of the digest of a computation. A digest with another prefix cannot be compared:
its placer wrote other programs for the same model. Change it with the text of programs."""


@dataclass(frozen=True, slots=True)
class StartFacts:
    """The facts about the start of a run. The fields have the meaning of `Manifest`.

    `computation` is empty except on the control node.
    """

    placement: str
    computation: str
    train: StoredData
    evaluation: StoredData | None
    machines: dict[str, Machine]


def gather_facts(
    execution: Execution,
    devices: Devices,
    batches: tuple[Batches, Batches | None],
    digests: tuple[Digests | None, Digests | None],
) -> StartFacts:
    """Gather the facts of a run. All nodes call this at the same point.

    Args:
        batches: the batches of training and evaluation.
        digests: the digests of the rows of both; only on the control node.
    """
    plan = execution.plan
    machine = msgspec.to_builtins(_this_machine(devices))
    machines = barrier(plan, execution.channel, machine, MACHINES)
    stored = [
        None if source is None or each is None
        else StoredData(_settings(source), each.order.rows, digest)
        for source, each, digest in zip(
            (plan.train, plan.evaluation), batches, digests, strict=True
        )
    ]  # fmt: skip
    assert stored[0] is not None
    return StartFacts(
        placement_digest(plan),
        _computation_digest(plan, execution.folder) if execution.is_control else "",
        stored[0],
        stored[1],
        {
            node.name: msgspec.convert(machine, Machine)
            for node, machine in zip(plan.nodes, machines, strict=True)
        },
    )


def placement_digest(plan: Plan) -> str:
    """Return a digest of the facts that determine the order of all sums of a run.

    These are the data, ops, tables and messages of each node. The digest does not cover
    learning rates, hyperparameters, the length of training, metrics or predictions.
    """
    nodes = [
        structs.replace(
            node,
            program="",
            functions={},
            device_memory={},
            prediction=None,
            tables=tuple(
                structs.replace(table, learning_rate=None, hyper={}, averages=False)
                for table in node.tables
            ),
        )
        for node in plan.nodes
    ]
    parts = (
        plan.settings.precision,
        plan.settings.emulate,
        plan.settings.train.microbatches,
        plan.settings.train.schedule,
        nodes,
        [_as_digested(edge) for edge in plan.step_edges],
        plan.evaluation_edges,
    )
    return sha256(msgspec.json.encode(parts, order="deterministic"))


class _DigestedEdge(Edge, frozen=True):
    """An edge for digests. `ahead` (keys are sent one step early) replaces the inputs of values."""

    ahead: bool = False


def _as_digested(edge: Edge) -> Edge:
    if not any(value.inputs for value in edge.values):
        return edge
    values = tuple(structs.replace(value, inputs=()) for value in edge.values)
    fields = {**structs.asdict(edge), "values": values}
    return _DigestedEdge(**fields, ahead=True)


def _computation_digest(plan: Plan, folder: Path) -> str:
    """Return a digest of the node programs, the modules that they call, and the tables.

    Comments, docstrings and the layout of code do not change it.
    """
    modules = [f"{module}.py" for module in plan.modules]
    trees = {
        path: code_digest(read_file(folder, path, plan.files[path]))
        for path in {*modules, *(node.program for node in plan.nodes)}
    }
    nodes = [
        (node.name, trees[node.program], _as_written(node.tables), node.step)
        for node in plan.nodes
    ]
    sparse_tables = _as_written(plan.sparse_tables)
    parts: tuple[object, ...] = (
        nodes,
        [(path, trees[path]) for path in modules],
        sparse_tables,
    )
    if plan.transformations:  # other models have the digest of older checkpoints
        # The reasons in `whole` name lines of files.
        parts = (
            *parts,
            {
                number: structs.replace(each, whole=dict.fromkeys(each.whole, ""))
                for number, each in plan.transformations.items()
            },
        )
    return COMPARABLE + sha256(msgspec.json.encode(parts, order="deterministic"))


def _as_written(tables: Iterable[AnyTable]) -> list[AnyTable]:
    """Return tables with learning rates as mappings, whose keys a digest sorts."""
    return [
        structs.replace(table, learning_rate=msgspec.to_builtins(table.learning_rate))
        for table in tables
    ]


def _settings(source: RowSource) -> Data:
    fields = {each.name: getattr(source, each.name) for each in structs.fields(Data)}
    return Data(**fields)


def _this_machine(devices: Devices) -> Machine:
    kinds = {
        name: ", ".join(sorted({device.device_kind for device in each}))
        for name, each in devices.sets.items()
    }
    return Machine(package_versions(), processor(), xla_threads(), kinds)
