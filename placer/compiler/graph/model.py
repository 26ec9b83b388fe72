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
    """The number of bytes that one device can store, with its position in the spec."""

    nbytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class Model:
    """One model: the graph of one step in one process, the data and the settings.

    The graph contains the `read` and `parameter` ops, the forward ops, one `record` op
    per metric and one for the minimized loss, one `output` op per output of a
    prediction, one `optimizer` op per group, and `minimize`. Places are as in the spec.
    """

    graph: Graph
    inputs: Mapping[str, TensorType]
    train: RowSource
    eval: RowSource | None
    settings: RunSettings
    folder: Path
    file: str
    """The name of the spec or of the Python file, as in the positions of ops."""
    prediction: RowSource | None = None
    """The rows of a prediction, if the graph has `output` ops: by default those of the
    evaluation, or else of training, all of them in their order."""
    modules: tuple[str, ...] = ()
    """The names of the Python modules that the spec imports."""
    classes: Mapping[str, Classes] = field(default_factory=dict)
    """The classes of the outputs of predictions that score classes."""
    narrowed_inputs: tuple[str, ...] = ()
    """Inputs that the spec declares with 64-bit integers and the graph has in 32
    bits."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of initial values that are not in a folder, by name."""
    overrides: tuple[str, ...] = ()
    """The keys of the spec that were set from outside, as `KEY=VALUE`."""
    data_spans: Mapping[str, Span] = field(default_factory=dict)
    """The positions of the keys of `data`, such as `train.columns.image`, and of
    `inputs.image`."""
    memory: Mapping[tuple[str, str], Memory] = field(default_factory=dict)
