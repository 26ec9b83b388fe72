"""Changes docstrings into reStructuredText, before napoleon reads their sections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

from tools.op_reference import declared

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_EXAMPLES: Final = ("Example:", "Examples:")
_BEFORE_NAPOLEON: Final = 400
_PAGE = re.compile(r"\bdocs/([\w/-]+)\.md(?:#[\w-]+)?")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(?=(\w?))")


def change_docstring(lines: list[str]) -> list[str]:
    """Return a docstring in reStructuredText.

    Single backticks become those of code, examples and formulas of ops become blocks of
    code, and other characters lose the meaning that reStructuredText gives them.
    """
    changed: list[str] = []
    for is_example, block in _blocks(lines):
        if is_example:
            changed += _example(block)
        else:
            for paragraph in re.split(r"\n{2,}", "\n".join(block)):
                if " ".join(paragraph.split()) in _formulas():
                    code = (f"   {line}" for line in paragraph.splitlines())
                    changed += [".. code-block:: text", "", *code, ""]
                else:
                    changed += [*_prose(paragraph).splitlines(), ""]
    return changed


@cache
def _formulas() -> frozenset[str]:
    """Return the formulas of all ops."""
    return frozenset(" ".join(each.formula.split()) for each in declared()) - {""}


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Yield the examples of a docstring, with their headings, and the lines between them."""
    block: list[str] = []
    is_example = False
    for line in lines:
        begins = line in _EXAMPLES
        ends = is_example and bool(line.strip()) and not line.startswith(" ")
        if begins or ends:
            yield is_example, block
            block, is_example = [], begins
        block.append(line)
    yield is_example, block


def _example(block: list[str]) -> Iterator[str]:
    heading, *code = block
    language = "pycon" if any(">>>" in line for line in code) else "python"
    yield from (heading, f"    .. code-block:: {language}", "")
    yield from (f"    {line}" if line.strip() else "" for line in code)
    yield ""


def _prose(text: str) -> str:
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts.append(_escaped(text[end : found.start()]))
        # A letter after code, as in `op`s, would not end it.
        parts.append(f"``{found[1].strip()}``" + ("\\ " if found[2] else ""))
        end = found.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    text = re.sub(r"([*|])", r"\\\1", text)
    return _PAGE.sub(r":doc:`/\1`", text)


def setup(app: Sphinx) -> dict[str, object]:
    """Change the docstrings that autodoc reads."""
    from docutils import nodes

    def process(
        app: Sphinx,
        what: str,
        name: str,
        obj: object,
        options: object,
        lines: list[str],
    ) -> None:
        lines[:] = change_docstring(lines)

    def join_descriptions(app: Sphinx, document: nodes.document) -> None:
        for field in document.findall(nodes.field_list):
            for text in list(field.findall(nodes.Text)):
                if text == " -- ":  # between a parameter and its description
                    text.parent.replace(text, nodes.Text(": "))

    app.connect("autodoc-process-docstring", process, priority=_BEFORE_NAPOLEON)
    app.connect("doctree-read", join_descriptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
