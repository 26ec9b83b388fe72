"""What tasks of a step keep of a microbatch for later tasks."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from placer.ast_lock import AST_LOCK
from placer.emit.code import format_call, literal


def variables_in(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The variables that statements assign, and those that they use before they assign
    them: each once, in order."""
    with AST_LOCK:
        module = ast.parse(textwrap.dedent("\n".join(lines)))
    assigned: dict[str, None] = {}
    used: dict[str, None] = {}
    for statement in module.body:
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
        for name in names:
            if isinstance(name.ctx, ast.Load) and name.id not in assigned:
                used[name.id] = None
        for name in names:
            if isinstance(name.ctx, ast.Store) and name.id != "_":
                assigned[name.id] = None
    return [*assigned], [*used]


class Kept:
    """What each task keeps for later ones, by the statements of the tasks; a task that
    runs once a step has none."""

    def __init__(self, tasks: Sequence[Sequence[str]]) -> None:
        flows = [variables_in(lines) for lines in tasks]
        users: dict[tuple[int, str], list[int]] = {}
        for i, (_, used) in enumerate(flows):
            for name in used:
                makers = [j for j in range(i) if name in flows[j][0]]
                if makers:
                    users.setdefault((makers[-1], name), []).append(i)
        self._kept: dict[int, list[str]] = {}
        self._taken: dict[tuple[int, bool], list[str]] = {}
        for (maker, name), found in users.items():
            self._kept.setdefault(maker, []).append(name)
            for user in found:
                self._taken.setdefault((user, user == found[-1]), []).append(name)

    def saves(self, task: int, depth: int) -> list[str]:
        """The statement at the end of a task that keeps variables."""
        names = self._kept.get(task, [])
        arguments = [f"{name}={name}" for name in names]
        return format_call([], "node.keep_values", arguments, depth) if names else []

    def loads(self, task: int, depth: int) -> list[str]:
        """The statements at the beginning of a task that get them back; after the last
        task that uses a variable it is not kept any longer."""
        lines: list[str] = []
        for verb, last in (("load_values", False), ("pop_values", True)):
            names = self._taken.get((task, last))
            if names:
                targets = [f"({names[0]},)"] if len(names) == 1 else names
                named = [literal(name) for name in names]
                lines += format_call(targets, f"node.{verb}", named, depth)
        return lines
