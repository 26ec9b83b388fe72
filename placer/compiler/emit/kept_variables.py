"""Keeps variables of a microbatch for the later tasks of a step."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.emit.code import About, Call, Expression, literal


def assigned(statements: Sequence[Call]) -> list[str]:
    """Return the variables that statements assign, in order and without repetition."""
    return [*dict.fromkeys(target for each in statements for target in each.targets)]


def keep_variables(tasks: Sequence[Sequence[Call]], about: About) -> list[list[Call]]:
    """Return the statements of tasks that keep variables for later tasks and load them.

    The last task that uses a variable removes it from the kept variables.

    Args:
        tasks: the statements of each task of a microbatch.
        about: the function that an error in the new statements concerns.
    """
    assigned_by = [assigned(task) for task in tasks]
    # The tasks that use a variable, by the task that assigns it and its name.
    users: dict[tuple[int, str], list[int]] = {}
    for user, task in enumerate(tasks):
        for variable in _used(task):
            earlier = [i for i in range(user) if variable in assigned_by[i]]
            if earlier:
                users.setdefault((earlier[-1], variable), []).append(user)
    complete = []
    for number, task in enumerate(tasks):
        kept = [v for (_, v), found in users.items() if number in found[:-1]]
        taken = [v for (_, v), found in users.items() if number == found[-1]]
        saved = [v for source, v in users if source == number]
        statements = [*task]
        if saved:
            values = [Expression(v, v).after(f"{v}=") for v in saved]
            statements.append(Call("node.keep_values", values, about=about))
        for verb, names in (("pop_values", taken), ("load_values", kept)):
            if names:
                arguments = [*map(literal, names)]
                get = Call(f"node.{verb}", arguments, names, is_tuple=True, about=about)
                statements.insert(0, get)
        complete.append(statements)
    return complete


def _used(statements: Sequence[Call]) -> list[str]:
    """Return the variables that statements read before they assign them."""
    known: set[str] = set()
    used: dict[str, None] = {}
    for statement in statements:
        used.update((v, None) for v in statement.reads if v not in known)
        known.update(statement.targets)
    return [*used]
