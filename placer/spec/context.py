"""What the ops of one spec are built with."""

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
    """What is known of a spec while its ops are built: the values, parameters and names
    that there are, how places are read, whether its floats are `wide` (float64), its
    seed, the folder that it lies in, and the mistakes that were found."""

    values: Values
    parameters: Parameters
    places: Places
    names: Names
    wide: bool
    seed: int
    folder: Path
    problems: Problems
