"""Error messages for options that a command does not have."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

import click


def explain_unknown_option(
    error: click.NoSuchOption, words: Sequence[str]
) -> click.UsageError:
    """Return the error for an unknown option, with advice on what to write instead. The
    advice is the key of the spec with this name, the commands that have the option, or
    options with a similar name. `words` is the command line."""
    context, name = error.ctx, error.option_name
    if context is None or not name.startswith("--"):
        return error
    instead = _instead(context, name, words)
    others = _commands_with(context, name)
    if instead is not None and _has(context.command, instead.partition(" ")[0]):
        advice = f"Did you mean {instead}?"
    elif instead is not None and context.command.name in ("launch", "run"):
        advice = (
            "The build is already compiled. Compile its spec again: placer compile SPEC "
            f"--out BUILD {instead}."
        )
    elif others:
        advice = f"It is an option of: {', '.join(others)}."
    elif error.possibilities:  # Keep the order of similarity; click would sort by name.
        advice = f"Did you mean {' or '.join(error.possibilities)}?"
    else:
        return error
    return click.UsageError(f"{error.message} {advice}", context)


def _instead(context: click.Context, name: str, words: Sequence[str]) -> str | None:
    """Return the `--set` option that replaces an unknown option, or None."""
    from placer.compiler.frontend.setting_names import find_node_kind, find_setting

    value = _value_of(name, words)
    if (kind := find_node_kind(name)) is not None:
        count = value if value is not None and value.isdecimal() else "N"
        return f"--nodes {kind}={count}"
    options = [option for each in context.command.params for option in each.opts]
    options += [name] if _commands_with(context, name) else []
    if (path := find_setting(name, options)) is not None:
        setting = f"{path}={'VALUE' if value is None else value}"
        return f"--set {quote(setting)}"
    return None


def _has(command: click.Command, option: str) -> bool:
    return any(option in parameter.opts for parameter in command.params)


def _commands_with(context: click.Context, name: str) -> list[str]:
    group = context.parent.command if context.parent is not None else None
    if not isinstance(group, click.Group):
        return []
    return [
        f"placer {command.name}"
        for command in group.commands.values()
        if _has(command, name)
    ]


def _value_of(name: str, words: Sequence[str]) -> str | None:
    for index, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name:
            following = words[index + 1 : index + 2]
            return (
                None if not following or following[0].startswith("--") else following[0]
            )
    return None
