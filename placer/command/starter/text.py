"""Writes lines of YAML and of comments, and fills templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from string import Template
from textwrap import wrap

from placer.compiler.frontend.python.yaml_text import WIDTH, one_line


def render(template: str, values: Mapping[str, object]) -> str:
    """Return a template with its values filled in.

    A line `% if NAME` or `% always` says when the lines up to the next such line are
    written: if the value NAME is true, or always. Elsewhere, $NAME stands for a value. A
    line with only $NAME, where the value is a list, stands for the lines of this list,
    with the same indent. Consecutive comment lines are wrapped as one paragraph.
    """
    lines: list[str] = []
    for block in re.split("^% ", template, flags=re.MULTILINE)[1:]:
        condition, _, text = block.partition("\n")
        if condition == "always" or values[condition.removeprefix("if ")]:
            lines += _fill(text, values)
    return "\n".join(lines) + "\n"


def _fill(text: str, values: Mapping[str, object]) -> Iterator[str]:
    for prefix, lines in groupby(text.splitlines(), _start_of_comment):
        if prefix:
            paragraph = " ".join(line.removeprefix(prefix) for line in lines)
            yield from comment(Template(paragraph).substitute(values), prefix)
            continue
        for line in lines:
            value = values.get(line.strip().removeprefix("$"))
            if isinstance(value, list):
                indent = line.partition("$")[0]
                yield from (indent + each for each in value)
            else:
                yield Template(line).substitute(values)


def _start_of_comment(line: str) -> str:
    found = re.match(r" *# (?=\S)", line)
    return found[0] if found else ""


def comment_text(text: str) -> str:
    """Return a text without the characters that would end a line of a comment."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def comment(
    text: str, first: str = "# ", then: str | None = None, indent: int = 0
) -> list[str]:
    """Return a text as comment lines, short enough for `indent` more blanks."""
    return wrap(
        comment_text(text),
        WIDTH - indent,
        initial_indent=first,
        subsequent_indent=first if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def flow_list(key: str, items: Iterable[object], indent: int) -> Iterator[str]:
    """Yield a key with a list, on as many lines as needed, short enough for `indent` more
    blanks."""
    texts = [one_line(item, flow=True) for item in items]
    joined = f"{one_line(key)}: [{', '.join(texts)}]"
    if len(joined) <= WIDTH - indent:
        yield joined
        return
    yield f"{one_line(key)}:"
    line = "  ["
    for position, text in enumerate(texts):
        text += "]" if position == len(texts) - 1 else ","
        if len(line) + len(text) + 1 > WIDTH - indent and not line.endswith("["):
            yield line.rstrip()
            line = "   "
        line += text + " "
    yield line.rstrip()
