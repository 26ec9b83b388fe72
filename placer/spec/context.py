"""The context in which the ops of one spec are built."""

from __future__ import annotations

from dataclasses import dataclass
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
    is whether the precision is float64, and `folder` the folder of the spec.
    """

    values: Values
    parameters: Parameters
    places: Places
    names: Names
    is_float64: bool
    seed: int
    folder: Path
    problems: Problems
