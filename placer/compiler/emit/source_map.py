"""Makes sources.json: the position in the spec of each op and of each line of a program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from placer.compiler.emit.programs import Programs
from placer.compiler.emit.roles import spec_op
from placer.compiler.graph.model import Model
from placer.compiler.schedule.units import LoweredGraph
from placer.plan.plan import CompileArguments, Sources


def make_sources(
    model: Model,
    graphs: Sequence[LoweredGraph],
    programs: Programs,
    arguments: CompileArguments | None,
    out: Path,
) -> Sources:
    """Return the sources of a build in the folder `out`, compiled with `arguments`.

    Ops that a Python module of the spec defines have no position.
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

    # All lines of a statement share one tuple of ops, which may be long. It is looked up by
    # identity, because hashing it takes time.
    shortened: dict[int, tuple[str, ...]] = {}
    for lines in programs.about.values():
        for about in lines.values():
            if id(about) not in shortened:
                function, *names = about
                known = {*names} & positions.keys()
                ops = sorted(known, key=lambda op: (positions[op], op))
                ends = ops if len(ops) < 2 else (ops[0], ops[-1])
                shortened[id(about)] = function, *ends

    spec = model.folder / Path(model.file).name
    return Sources(
        spec=Path(os.path.relpath(spec, out)).as_posix(),
        ops=positions,
        data={
            key: (span.line, span.column)
            for key, span in model.data_spans.items()
            if span.file == model.file
        },
        overrides=model.overrides,
        lines={
            path: {number: shortened[id(about)] for number, about in lines.items()}
            for path, lines in programs.about.items()
        },
        arguments=arguments,
    )
