"""What a front end hands to the compiler: the graph of one step, and how to train it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from placer.config.csv import Csv
from placer.errors import Span
from placer.graph.graph import Graph
from placer.types import TensorType


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from, in which order, and how many make a global batch."""

    source: str
    batch: int
    split: str | None = None
    columns: Mapping[str, str | list[str]] | None = None
    shuffle: bool = False
    seed: int = 0
    remainder: Literal["drop", "keep"] = "drop"
    csv: Csv | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """How many bytes one device holds, and where the spec says so."""

    nbytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class Model:
    """One model: its graph for one process, and everything a run needs beside it.

    The graph holds `read` and `parameter` ops, the forward ops, one `record` per
    metric and one of the minimized loss, one `optimizer` op per group and `minimize`;
    places are as written.
    """

    graph: Graph
    inputs: Mapping[str, TensorType]
    train: Source
    eval: Source | None
    epochs: int
    seed: int
    precision: Literal["float32", "float64"]
    metrics: tuple[str, ...]
    folder: Path
    file: str
    """The spec, or the Python that stands for it, as ops name it where they stand."""
    schedule: str = "1f1b"
    """In what order blocks run for the microbatches of a step: 1f1b or gpipe."""
    nan: Literal["stop", "warn"] = "stop"
    """What happens when the minimized loss is not finite."""
    emulate: bool = False
    """Whether every device that is no CPU is a CPU device of its own."""
    modules: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    """Inputs declared with 64-bit integers that the graph takes as 32-bit ones."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of initial values that lie in no folder, by name."""
    memory: Mapping[tuple[str, str], Memory] = field(default_factory=dict)
