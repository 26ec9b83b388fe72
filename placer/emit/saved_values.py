"""What blocks of a step keep of a microbatch for later blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placer.analysis.tasks import Block
from placer.analysis.units import Unit
from placer.emit.code import call, literal
from placer.emit.names import Names
from placer.graph.graph import TOGETHER


class Kept:
    """What blocks keep of a microbatch for later blocks."""

    def __init__(self, names: Names, among: Sequence[Block]) -> None:
        made: dict[str, int] = {}
        used: dict[str, list[int]] = {}
        for i, block in enumerate(among):
            for unit in block.units if block.repeated else ():
                for name in _takes(unit):
                    variable = names.of(name)
                    if made.get(variable, i) != i and i not in used.get(variable, ()):
                        used.setdefault(variable, []).append(i)
                for op in unit.ops:
                    for value in op.results:
                        if value.over is not None and op.kind not in TOGETHER.values():
                            made.setdefault(names.of(value.name), i)
        self._kept: dict[int, list[str]] = {}
        self._taken: dict[tuple[int, bool], list[str]] = {}
        for variable, users in used.items():
            self._kept.setdefault(made[variable], []).append(variable)
            for user in users:
                last = user == users[-1]
                self._taken.setdefault((user, last), []).append(variable)

    def kept(self, block: int, depth: int) -> list[str]:
        """What the block keeps, at its end."""
        names = self._kept.get(block, [])
        arguments = [f"{name}={name}" for name in names]
        return call([], "node.keep", arguments, depth) if names else []

    def taken(self, block: int, depth: int) -> list[str]:
        """What it takes, at its beginning; what is taken for the last time goes."""
        lines: list[str] = []
        for verb, last in (("kept", False), ("taken", True)):
            names = self._taken.get((block, last))
            if names:
                targets = [f"({names[0]},)"] if len(names) == 1 else names
                named = [literal(name) for name in names]
                lines += call(targets, f"node.{verb}", named, depth)
        return lines


def _takes(unit: Unit) -> Iterable[str]:
    """The values that are there before the unit runs: a function does without those that
    only others need of what it computes."""
    if unit.computed:
        return unit.inputs
    return (name for op in unit.ops for name in op.operands)
