"""What blocks of a step keep of a microbatch for later blocks."""

from __future__ import annotations

from collections.abc import Sequence

from placer.emit.blocks import Block
from placer.emit.code import call, literal
from placer.emit.names import Names
from placer.graph.graph import TOGETHER, Graph


class Kept:
    """What blocks keep of a microbatch for later blocks."""

    def __init__(self, graph: Graph, names: Names, among: Sequence[Block]) -> None:
        made: dict[str, int] = {}
        used: dict[str, list[int]] = {}
        for i, block in enumerate(among):
            for op in block.ops if block.repeated else ():
                for name in op.operands:
                    variable = names.of(name)
                    if made.get(variable, i) != i and i not in used.get(variable, []):
                        used.setdefault(variable, []).append(i)
                for value in op.results:
                    if value.over is not None and op.kind not in TOGETHER.values():
                        made.setdefault(names.of(value.name), i)
        self._made, self._used = made, used

    def kept(self, block: int, depth: int) -> list[str]:
        """What the block keeps, at its end."""
        names = [v for v in self._used if self._made[v] == block]
        arguments = [f"{name}={name}" for name in names]
        return call([], "node.keep", arguments, depth) if names else []

    def taken(self, block: int, depth: int) -> list[str]:
        """What it takes, at its beginning; what is taken for the last time goes."""
        lines: list[str] = []
        for verb, last in (("kept", False), ("taken", True)):
            names = [
                v
                for v, blocks in self._used.items()
                if block in blocks and (blocks[-1] == block) == last
            ]
            if names:
                targets = [f"({names[0]},)"] if len(names) == 1 else names
                named = [literal(name) for name in names]
                lines += call(targets, f"node.{verb}", named, depth)
        return lines
