"""The builder of specs, applied to each op as it is called, to report errors there.

Checks that need the whole program (rules of `parameters`, optimizers, rows) are left to
its compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from placer.errors import Span
from placer.front.tree import sequence_node
from placer.graph.graph import Op
from placer.spec.context import Context
from placer.spec.names import Names
from placer.spec.op_parameters import Parameters, graph_type
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.sections.data import read_inputs
from placer.spec.sections.graph import Builder
from placer.spec.sections.nodes import read_nodes
from placer.spec.sections.train import Group, read_group
from placer.spec.tree import MappingNode, ScalarNode, SpecNode
from placer.spec.values import Values
from placer.spec.weight_files import WeightFiles
from placer.types import TensorType


class LiveBuilder:
    """The inputs and ops that a program has defined so far. Unusable after an error.

    `nodes` is None if the program has no section `nodes` yet. Places are then parsed,
    and checked against the cluster when the program is compiled.
    """

    def __init__(
        self,
        nodes: SpecNode | None,
        wide: bool,
        seed: int,
        folder: Path,
        span: Span,
        files: Mapping[str, bytes],
    ) -> None:
        self._inputs: dict[str, TensorType | None] = {}
        self._spans: dict[str, Span] = {}
        problems = Problems()
        self.names = Names(problems)
        cluster = read_nodes(nodes, None, problems)
        problems.raise_any()
        values = Values(self._inputs, self._spans, None, problems)
        default_group = Group(span, None, {"group": 0}, None)
        parameters = Parameters(
            values, [], [default_group], wide, problems, WeightFiles(folder, files)
        )
        places = Places(cluster, problems)
        self._context = Context(
            values, parameters, places, self.names, wide, seed, folder, problems
        )
        self._builder = Builder(self._context)

    def declare(self, inputs: MappingNode) -> None:
        """Declare the entries of a section `inputs`. Raises SpecError."""
        types = read_inputs(
            inputs, self._context.is_float64, self.names, self._context.problems
        )
        self._context.problems.raise_any()
        for name, type_ in types.items():
            assert type_ is not None
            self._inputs[name] = graph_type(type_, self._context.is_float64)
            self._spans[name] = inputs.keys[name].span

    def add(self, entries: Sequence[SpecNode], span: Span) -> tuple[Op, ...]:
        """Build entries of a section `graph`, and return the ops. Raises SpecError."""
        before = len(self._context.values.ops)
        self._builder.build(sequence_node(list(entries), span))
        self._context.problems.raise_any()
        return tuple(self._context.values.ops[before:])

    def check_loss(self, loss: ScalarNode) -> None:
        """Raise SpecError unless the value can be a loss."""
        self._context.values.check_scalar(loss, "loss")
        self._context.problems.raise_any()

    def check_optimizer(self, optimizer: MappingNode) -> None:
        """Raise SpecError unless the mapping is an entry of `optimizer`."""
        where = "train.optimizer"
        read_group(
            optimizer, 0, where, {}, self._context.places, self._context.problems
        )
        self._context.problems.raise_any()

    def check_place(self, place: ScalarNode) -> None:
        """Raise SpecError if the cluster does not have the place."""
        self._context.places.merge(None, place)
        self._context.problems.raise_any()

    def type_of(self, name: str) -> TensorType | None:
        """Return the type of an input or a value; None if it is not defined."""
        return self._inputs.get(name) or self._context.values.types.get(name)
