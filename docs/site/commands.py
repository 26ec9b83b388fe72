"""Writes the reference of the command line from its click commands: a page per command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from docs.site.pages import Page, front_matter
from placer.command.cli import commands
from placer.command.option_groups import GROUPS

_OTHER: Final = "Other options"
_EXAMPLES: Final = {
    "explain": (
        "placer explain specs/digits.yaml h1.w",
        "placer explain specs/digits.yaml",
    )
}
"""Commands that a page shows with their output, by the command of placer."""
_INDEX = """\
# Command line

`placer COMMAND --help` prints the text of these pages.

| command | purpose |
| --- | --- |
{rows}

## Exit statuses

| status | meaning |
| --- | --- |
| 0 | success |
| 1 | a failure at run time, such as a node that ends |
| 2 | an error that the user can correct, such as a mistake in a spec |
| 130 | interrupted with Ctrl-C |

An error prints a message, the position in the file if it is in one, and a hint. `--debug`
also prints the traceback.

```{{toctree}}
:hidden:

{pages}
```
"""


def pages() -> Iterator[Page]:
    """Yield the pages of the command line."""
    rows = [
        f"| [`placer {name}`]({name}.md) | {_short(command)} |"
        for name, command in commands.commands.items()
    ]
    text = _INDEX.format(rows="\n".join(rows), pages="\n".join(commands.commands))
    yield Page(
        "index", front_matter("All commands of placer and their options.") + text
    )
    for name, command in commands.commands.items():
        yield Page(name, "\n".join(_page(f"placer {name}", command)))


def _page(path: str, command: click.Command) -> Iterator[str]:
    yield front_matter(f"{path}: {_short(command)}")
    yield f"# {path}\n"
    yield from _command(path, command, "##")
    if examples := _EXAMPLES.get(str(command.name)):
        yield "## Example\n"
        yield from (f"```{{terminal}} {example}\n```\n" for example in examples)
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield f"## {path} {name}\n"
            yield from _command(f"{path} {name}", each, "###")


def _short(command: click.Command) -> str:
    return command.get_short_help_str(limit=200)


def _command(path: str, command: click.Command, heading: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```\n"
    yield f"{_markdown(command.help or '')}\n"
    yield f"```{{program}} {path}\n```\n"
    groups: dict[str, list[str]] = {title: [] for title in (*GROUPS, _OTHER)}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            title = getattr(parameter, "group", _OTHER)
            groups[title].append(_option(*record))
    used = {title: entries for title, entries in groups.items() if entries}
    for title, entries in used.items():
        yield f"{heading} {'Options' if len(used) == 1 else title}\n"
        yield from entries


def _option(names: str, text: str) -> str:
    return f"````{{option}} {names.replace(' / ', ', ')}\n{_escaped(text)}\n````\n"


def _markdown(text: str) -> str:
    """Return a help text as Markdown. A paragraph after a line `\\b` is not wrapped."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text.partition("\f")[0]))
    return "\n\n".join(
        f"```text\n{inspect.cleandoc(each[2:])}\n```"
        if each.startswith("\b\n")
        else _escaped(each)
        for each in paragraphs
    )


def _escaped(text: str) -> str:
    """Return a text without the meaning that Markdown gives to its characters."""
    parts = text.split("`")  # every other part is code
    parts[::2] = [re.sub(r"([*_<>\[\]$])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
