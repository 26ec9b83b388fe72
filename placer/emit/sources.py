"""The content of sources.json: where each op, and each line of a program, comes from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from placer.analysis.units import LoweredGraph
from placer.build.plan import Sources
from placer.emit.programs import Programs
from placer.emit.roles import spec_op
from placer.graph.model import Model


def make_sources(
    model: Model, graphs: Sequence[LoweredGraph], programs: Programs, out: Path
) -> Sources:
    """Return the sources of a build in the folder `out`.

    Ops of a Python module that the spec names have no position in the spec.
    """
    located = [
        (lowered.graph, op, (op.source.line, op.source.column))
        for lowered in graphs
        for op in lowered.graph.ops
        if op.source is not None and op.source.file == model.file
    ]
    positions: dict[str, tuple[int, int]] = {}
    for _, op, position in located:
        positions.setdefault(op.name, position)
    for graph, op, position in located:
        positions.setdefault(spec_op(graph, op), position)

    @cache  # all lines of a function that have one cause are about the same ops
    def shortened(about: tuple[str, ...]) -> tuple[str, ...]:
        function, *names = about
        ops = sorted({*names} & positions.keys(), key=lambda op: (positions[op], op))
        return function, *(ops if len(ops) < 2 else (ops[0], ops[-1]))

    spec = model.folder / Path(model.file).name
    return Sources(
        spec=Path(os.path.relpath(spec, out)).as_posix(),
        ops=positions,
        lines={
            path: {number: shortened(about) for number, about in lines.items()}
            for path, lines in programs.about.items()
        },
    )
