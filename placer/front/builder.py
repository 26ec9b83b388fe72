"""The builder of specs, applied to each op as it is called, to report errors there.

Checks that need the whole program (rules of `parameters`, optimizers, rows) are left to
its compilation. A context is unusable after an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placer.errors import Span
from placer.graph.graph import Op
from placer.spec.context import Context
from placer.spec.inputs import declare_inputs
from placer.spec.names import Names
from placer.spec.op_parameters import Parameters
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.sections.graph import build_ops
from placer.spec.sections.nodes import read_nodes
from placer.spec.sections.train import Group
from placer.spec.tree import MappingNode, SequenceNode, SpecNode
from placer.spec.values import Values
from placer.spec.weight_files import WeightFiles


def new_context(
    nodes: SpecNode | None,
    inputs: MappingNode,
    wide: bool,
    seed: int,
    folder: Path,
    span: Span,
    files: Mapping[str, bytes],
) -> Context:
    """Return the context of a program without ops. Raises SpecError.

    `nodes` is None if the program has no section `nodes` yet. Places are then parsed,
    and checked against the cluster when the program is compiled.
    """
    problems = Problems()
    names = Names(problems)
    cluster, _ = read_nodes(nodes, None, problems)
    problems.raise_any()
    values = Values(None, problems)
    declare_inputs(inputs, wide, names, values, problems)
    problems.raise_any()
    groups = [Group(span, None, {"group": 0}, None)]
    weights = WeightFiles(folder, files)
    parameters = Parameters(values, [], groups, wide, problems, weights)
    places = Places(cluster, problems)
    return Context(values, parameters, places, names, wide, seed, folder, problems)


def add_ops(entries: list[SpecNode], span: Span, context: Context) -> tuple[Op, ...]:
    """Build entries of a section `graph`, and return the ops. Raises SpecError."""
    before = len(context.values.ops)
    build_ops(SequenceNode(span, entries), context)
    context.problems.raise_any()
    return tuple(context.values.ops[before:])
