"""Groups the options in the help of a command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import click

GROUPS: Final = (
    "Model",
    "Run",
    "Checkpoints",
    "Machines and connections",
    "Engines",
    "Time limits",
    "Output",
)
"""The titles of the groups, in the order of the help."""
Function = TypeVar("Function", bound=Callable[..., Any])
_WORDS: Final = "placer.words"


class GroupedOption(click.Option):
    """An option that belongs to one of `GROUPS`."""

    def __init__(self, *args: Any, group: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert group in GROUPS
        self.group = group


def grouped_option(
    group: str, *declarations: str, **settings: Any
) -> Callable[[Function], Function]:
    """Add an option to a group. `settings` are arguments of `click.option`."""
    return click.option(*declarations, cls=GroupedOption, group=group, **settings)


class GroupedCommand(click.Command):
    """A command that lists its options by group in the help. It keeps the words after
    its name for `command_without`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command, then parse them."""
        ctx.meta[_WORDS] = [*args]
        return super().parse_args(ctx, args)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options of each group, then the options without a group."""
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (*GROUPS, "Other options")
        }
        for parameter in self.get_params(ctx):
            entry = parameter.get_help_record(ctx)
            if entry is not None and isinstance(parameter, click.Option):
                sections[getattr(parameter, "group", "Other options")].append(entry)
        for title, entries in sections.items():
            if entries:
                with formatter.section(title):
                    formatter.write_dl(entries)


def command_without(names: Collection[str]) -> str:
    """Return the current command, quoted for a shell, without the options in `names`.
    The result is "" if the command is not a `GroupedCommand`."""
    context = click.get_current_context(silent=True)
    if context is None or _WORDS not in context.meta:
        return ""
    parser = context.command.make_parser(context)
    given, _, order = parser.parse_args([*context.meta[_WORDS]])
    words, options = context.command_path.split(), list[str]()
    for parameter in dict.fromkeys(order):
        name = parameter.name or ""
        if name in names or name not in given:
            continue
        if not isinstance(parameter, click.Option):
            words.append(given[name])
        elif parameter.is_flag:
            options.append(parameter.opts[0])
        else:
            for value in given[name] if parameter.multiple else [given[name]]:
                options += [parameter.opts[0], value]
    return shlex.join(words + options)
