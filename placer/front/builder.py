"""The spec's own builder, fed as ops are called, so that a mistake is told at its line.

What only the whole program can say (rules of `parameters`, optimizers, rows) is left
to its compilation.
"""

from __future__ import annotations

from collections.abc import Mapping as Files
from collections.abc import Sequence
from pathlib import Path

from placer.errors import Span
from placer.front.tree import sequence
from placer.graph.graph import Op
from placer.spec.context import Context
from placer.spec.names import Names
from placer.spec.op_parameters import Parameters, held
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.sections.data import read_inputs
from placer.spec.sections.graph import Builder
from placer.spec.sections.nodes import read_nodes
from placer.spec.sections.train import Group, read_group
from placer.spec.tree import Mapping, Node, Scalar
from placer.spec.values import Values
from placer.spec.weight_files import Weights
from placer.types import TensorType


class Live:
    """What a program has defined so far. After an error it is of no more use.

    `nodes` is None while the program does not say them: then places are read, and held
    against the cluster when it is compiled.
    """

    def __init__(
        self,
        nodes: Node | None,
        wide: bool,
        seed: int,
        folder: Path,
        span: Span,
        files: Files[str, bytes],
    ) -> None:
        self._inputs: dict[str, TensorType | None] = {}
        self._spans: dict[str, Span] = {}
        problems = Problems()
        self.names = Names(problems)
        cluster = read_nodes(nodes, None, problems)
        problems.raise_any()
        values = Values(self._inputs, self._spans, None, problems)
        every = Group(span, None, {"group": 0}, None)
        parameters = Parameters(
            values, [], [every], wide, problems, Weights(folder, files)
        )
        places = Places(cluster, problems)
        self._context = Context(
            values, parameters, places, self.names, wide, seed, folder, problems
        )
        self._builder = Builder(self._context)

    def declare(self, inputs: Mapping) -> None:
        """Take entries of a section `inputs`; raises SpecError."""
        found = read_inputs(
            inputs, self._context.wide, self.names, self._context.problems
        )
        self._context.problems.raise_any()
        for name, type_ in found.items():
            assert type_ is not None
            self._inputs[name] = held(type_, self._context.wide)
            self._spans[name] = inputs.keys[name].span

    def add(self, entries: Sequence[Node], span: Span) -> tuple[Op, ...]:
        """Build entries of a section `graph`, and return the ops; raises SpecError."""
        before = len(self._context.values.ops)
        self._builder.build(sequence(list(entries), span))
        self._context.problems.raise_any()
        return tuple(self._context.values.ops[before:])

    def minimize(self, loss: Scalar) -> None:
        """Raise SpecError unless it is a loss."""
        self._context.values.is_scalar(loss, "loss")
        self._context.problems.raise_any()

    def optimize(self, optimizer: Mapping) -> None:
        """Raise SpecError unless it is an entry of `optimizer`."""
        where = "train.optimizer"
        read_group(
            optimizer, 0, where, {}, self._context.places, self._context.problems
        )
        self._context.problems.raise_any()

    def place(self, place: Scalar) -> None:
        """Raise SpecError for a place that the cluster does not have."""
        self._context.places.merge(None, place)
        self._context.problems.raise_any()

    def type_of(self, name: str) -> TensorType | None:
        """The type of an input or of a value; None where there is none."""
        return self._inputs.get(name) or self._context.values.types.get(name)
