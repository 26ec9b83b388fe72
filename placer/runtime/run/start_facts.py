"""What a checkpoint stores of the start of its run, to compare when another one resumes.

The bits of a result depend on the order of all sums, so on the placement, and on how the
machine computes: the versions of its packages, the processor and the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import structs

from placer.build.plan import Plan, sha256
from placer.checkpoint.manifest import Machine, StoredData
from placer.config.data import Data, RowSource
from placer.memory.compilation import processor
from placer.memory.cores import xla_threads
from placer.readers import Digests
from placer.runtime.program.devices import Devices
from placer.runtime.run.barrier import MACHINES, barrier
from placer.runtime.run.batches import Batches
from placer.runtime.run.state import Execution
from placer.runtime.run.versions import package_versions


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What is known once all nodes have started: the fields are those of `Manifest`."""

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
    """Return the facts of a run; all nodes call this at the same point.

    Args:
        execution: the node's run.
        devices: the node's devices.
        batches: the batches of training and evaluation.
        digests: the digests of their rows, on the control node.
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
        _computation_digest(plan),
        stored[0],
        stored[1],
        {
            node.name: msgspec.convert(machine, Machine)
            for node, machine in zip(plan.nodes, machines, strict=True)
        },
    )


def placement_digest(plan: Plan) -> str:
    """Return a digest of what decides the order of all sums of a run: what each node
    reads, computes, stores and sends.

    Learning rates and hyperparameters are left out, and so are the lengths of training,
    the metrics and predictions.
    """
    nodes = [
        structs.replace(
            node,
            program="",
            prediction=None,
            tables=tuple(
                structs.replace(table, learning_rate=None, hyper={})
                for table in node.tables
            ),
        )
        for node in plan.nodes
    ]
    parts = (
        plan.precision,
        plan.emulate,
        plan.microbatches,
        plan.schedule,
        nodes,
        plan.step_edges,
        plan.evaluation_edges,
    )
    return sha256(msgspec.json.encode(parts, order="deterministic"))


def _computation_digest(plan: Plan) -> str:
    """Return a digest of what the steps of a run compute: the programs of the nodes, the
    modules that these call, and how their tables are updated."""
    nodes = [
        (node.name, plan.files[node.program], node.tables, node.step)
        for node in plan.nodes
    ]
    modules = [(module, plan.files[f"{module}.py"]) for module in plan.modules]
    parts = (nodes, modules, plan.sparse_tables)
    return sha256(msgspec.json.encode(parts, order="deterministic"))


def _settings(source: RowSource) -> Data:
    """Return the settings of a source, without what the compiler has added."""
    fields = {each.name: getattr(source, each.name) for each in structs.fields(Data)}
    return Data(**fields)


def _this_machine(devices: Devices) -> Machine:
    """Return the facts of this process."""
    kinds = {
        name: ", ".join(sorted({device.device_kind for device in each}))
        for name, each in devices.sets.items()
    }
    return Machine(package_versions(), processor(), xla_threads(), kinds)
