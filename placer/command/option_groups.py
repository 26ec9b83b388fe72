"""Options that the help of a command lists in groups."""

from __future__ import annotations

from collections.abc import Callable
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
"""The titles of the groups, in their order."""
Function = TypeVar("Function", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that belongs to one of `GROUPS`."""

    def __init__(self, *args: Any, group: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert group in GROUPS
        self.group = group


def grouped_option(
    group: str, *declarations: str, **settings: Any
) -> Callable[[Function], Function]:
    """Add an option of a group; the other arguments are those of `click.option`."""
    return click.option(*declarations, cls=GroupedOption, group=group, **settings)


class GroupedCommand(click.Command):
    """A command whose help lists the options of each group apart, then all others."""

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options."""
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
