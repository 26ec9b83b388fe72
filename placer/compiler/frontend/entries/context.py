"""The context in which the ops of one spec are built."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from placer.compiler.frontend.entries.names import Names
from placer.compiler.frontend.entries.op_parameters import Parameters
from placer.compiler.frontend.entries.places import Places
from placer.compiler.frontend.entries.values import Values
from placer.compiler.frontend.entries.weight_files import WeightFiles
from placer.compiler.frontend.sections.nodes import read_nodes
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode


class Context:
    """The state that the readers and builders of one spec share.

    Attributes:
        values, parameters, names: The definitions so far.
        is_float64: Whether the precision is float64.
        modules: The Python modules that the build needs from the folder of the spec, in
            order.
        remat_numbers: Numbers for the next scopes with `remat`.

    Args:
        sections: The valid sections of the spec: nested ones as nodes, others as
            values.
        folder: The folder of the spec.
        files: Contents of files with initial values that are not in `folder`, by name.
        problems: Collects the errors.
        counts: Numbers of nodes by node kind, which replace the numbers in the spec.
    """

    def __init__(
        self,
        sections: Mapping[str, Any],
        folder: Path,
        files: Mapping[str, bytes],
        problems: Problems,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self.problems = problems
        self.folder = folder
        self.seed: int = sections.get("seed", 0)
        self.is_float64 = sections.get("precision") == "float64"
        nodes = sections.get("nodes")
        self.cluster, self.memories = read_nodes(nodes, counts, problems)
        self.names = Names(problems)
        self.places = Places(self.cluster, problems)
        self.values = Values(sections.get("graph"), problems)
        weights = WeightFiles(folder, files)
        self.parameters = Parameters(
            self.values, self.is_float64, _is_stream(sections), problems, weights
        )
        self.modules: dict[str, None] = {}
        self.remat_numbers = count(1)


def _is_stream(sections: Mapping[str, Any]) -> bool:
    """Whether `data.train` has the key `stream`."""
    data = sections.get("data")
    train = data.get_non_null("train") if isinstance(data, MappingNode) else None
    is_given = isinstance(train, MappingNode) and train.get_non_null("stream")
    return bool(is_given)
