"""Builds of a spec for one process, whose functions are timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from placer.compiler.driver import CompiledBuild, compile_in_memory
from placer.compiler.frontend.single_process import to_single_process
from placer.compiler.graph.graph import Graph
from placer.compiler.graph.model import Model
from placer.compiler.graph.structural_ops import OUTPUT
from placer.compiler.placing.pieces import group_of, is_timed
from placer.compiler.placing.split_groups import split_groups
from placer.compiler.schedule.units import LoweredGraph
from placer.place import Cluster, NodeKind
from placer.place.node_kinds import CPU
from placer.plan.settings.evaluation_and_stopping import Evaluating


@dataclass(slots=True)
class SplitBuild:
    """A build whose functions are split, and the graph of its step."""

    step: LoweredGraph
    compiled: CompiledBuild

    @property
    def segments(self) -> Mapping[str, int]:
        """The segment of each function of a step, by name."""
        (node,) = self.compiled.plan.nodes
        return node.functions


def split_build(
    model: Model,
    rows: int,
    microbatches: int,
    groups: Mapping[str, str] | None,
    device: str = CPU,
) -> SplitBuild:
    """Compile a model for one process, with a function for each group.

    Args:
        model: the model as written.
        rows: the rows of a batch.
        microbatches: the number of microbatches.
        groups: the group of each forward op by name. None for two groups: the first half
            of the ops and the second.
        device: the kind of device that computes.
    """
    found: list[Graph] = []

    def split(step: Graph) -> Graph:
        chosen = _halves(step) if groups is None else groups
        found.append(split_groups(step, chosen))
        return found[-1]

    compiled = compile_in_memory(
        _for_one_process(model, rows, microbatches, device), change_step=split
    )
    (step,) = found
    return SplitBuild(LoweredGraph(step, step.batch, "step"), compiled)


def _for_one_process(model: Model, rows: int, microbatches: int, device: str) -> Model:
    """Return a model that only trains, in one process, with batches of `rows` rows."""
    single = to_single_process(model)
    train = structs.replace(
        single.settings.train,
        microbatches=microbatches,
        early_stopping=None,
        checkpoint=None,
        eval=Evaluating(),
    )
    graph = replace(
        single.graph,
        cluster=Cluster((NodeKind("worker", 1, ((device, 1),)),)),
        batch=rows,
        microbatches=microbatches,
        evaluation_batch=None,
        ops=tuple(op for op in single.graph.ops if op.kind != OUTPUT),
    )
    return replace(
        single,
        graph=graph,
        train=structs.replace(single.train, batch=rows),
        eval=None,
        prediction=None,
        settings=structs.replace(single.settings, train=train),
    )


def _halves(step: Graph) -> dict[str, str]:
    forward = [op for op in step.ops if is_timed(op) and not op.is_gradient]
    names = dict.fromkeys(group_of(step, op, {}) for op in forward)
    return {n: f"half {2 * i // len(names)}" for i, n in enumerate(names)}
