"""The model that a front end passes to the compiler: a graph, data and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from placer.compiler.graph.graph import Graph
from placer.errors import Span
from placer.place.types import TensorType
from placer.plan.settings.data.classes import Classes
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.run import RunSettings


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one device in bytes, with its position in the spec."""

    nbytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class Model:
    """One model: the graph of one step in one process, the data and the settings.

    The graph contains `read` and `parameter` ops and the forward ops. It has one
    `record` op for each metric and for the loss, one `output` op for each output of a
    prediction, one `optimizer` op for each optimizer, and `minimize`. Places are as in
    the spec.
    """

    graph: Graph
    inputs: Mapping[str, TensorType]
    train: RowSource
    eval: RowSource | None
    settings: RunSettings
    folder: Path
    file: str
    """The name of the spec or Python file, as in the positions of ops."""
    prediction: RowSource | None = None
    """The rows of a prediction, if the graph has `output` ops. By default all rows of
    the evaluation source, or else of the training source, in order."""
    modules: tuple[str, ...] = ()
    """The names of the Python modules that the spec imports."""
    classes: Mapping[str, Classes] = field(default_factory=dict)
    """The class names of prediction outputs that score classes."""
    narrowed_inputs: tuple[str, ...] = ()
    """Inputs with 64-bit integers in the spec, but 32 bits in the graph."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of files with initial values that are not in a folder, by name."""
    overrides: tuple[str, ...] = ()
    """The overridden keys of the spec, as `KEY=VALUE`."""
    data_spans: Mapping[str, Span] = field(default_factory=dict)
    """Positions of the keys of `data`, as `train.columns.image`, and `inputs.NAME`."""
    publish_span: Span | None = None
    """The position of the key `train.publish`."""
    untrained: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The arrays that are not trained in the arguments of each traced function, with their
    types, by the name of the op."""
    memory: Mapping[tuple[str, str], Memory] = field(default_factory=dict)
