"""The context in which the ops of one spec are built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from placer.spec.names import Names
from placer.spec.op_parameters import Parameters
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.values import Values


@dataclass(frozen=True, slots=True)
class Context:
    """The state that the builders of one spec share.

    Values, parameters and names are those that have been defined so far. `is_float64`
    is whether the precision is float64, and `folder` the folder of the spec. `modules`
    are the Python modules beside the spec that the ops need, in order.
    """

    values: Values
    parameters: Parameters
    places: Places
    names: Names
    is_float64: bool
    seed: int
    folder: Path
    problems: Problems
    modules: dict[str, None] = field(default_factory=dict)
    remat_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """The numbers of the next scopes with `remat`."""
