"""Writes the gallery: a card and a page for each spec, and a page for each module of rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from docs.site.pages import Page, front_matter
from docs.site.paths import SPECS
from docs.site.placements import Asked

_RESULT = re.compile(r"\s*Final evaluation: (.+?)\.(?=\s|$)", re.DOTALL)
_BUILDER = re.compile(r"^def build\(", re.MULTILINE)
_PAGE_OF_DOCS = re.compile(r"(?<![(/])docs/([a-z/-]+\.md)")
_SPEC = re.compile(r"(?<![\w/`])(\w+\.(?:yaml|py))(?![\w:`])")
_DESCRIPTION: Final = 160
_WITH_OPTIONS: Final = {"adult.yaml"}
"""The specs whose comments have commands with other options."""

_INDEX = """\
# Gallery

Every spec that placer ships, with its placement and the result of its final evaluation.
Each trains in about a minute or less on two cores. The data ships with scikit-learn, or a
Python file next to the spec generates it; only the files of `adult.yaml` are downloaded.

`placer train specs/digits.yaml` trains a spec, and `placer report specs/digits.yaml` draws it.
"""


class Shown(NamedTuple):
    """A file of specs.

    Attributes:
        file: its name, such as "digits.yaml".
        comment: its first comment or docstring, as Markdown, without the result.
        model: the name for commands, such as "specs/digits.py:build"; "" for a module of
            rows or functions.
        result: the metrics of its final evaluation.
    """

    file: str
    comment: str
    model: str
    result: str

    @property
    def page(self) -> str:
        return page_of(self.file)

    @property
    def sentence(self) -> str:
        """The first sentence of the comment."""
        paragraph = " ".join(self.comment.split("\n\n")[0].split())
        return re.split(r"(?<=[.?])\s+(?=[A-Z])", paragraph)[0]


def page_of(file: str) -> str:
    """Return the name of the page of a file of specs, such as "digits" and "digits-py"."""
    name, _, suffix = file.partition(".")
    return name if suffix == "yaml" else f"{name}-py"


def shown() -> list[Shown]:
    """Return the files of specs: first models, those in YAML before those in Python.

    Raises:
        ValueError: the comment of a model has no sentence "Final evaluation: …".
    """
    files = [path for path in SPECS.iterdir() if path.suffix in (".yaml", ".py")]
    return sorted(
        map(_read, files),
        key=lambda each: (
            not each.model,
            each.file.endswith(".py"),
            not each.file.startswith("digits"),
            each.page,
        ),
    )


def pictures() -> list[Asked]:
    """Return the pictures of all specs."""
    return [Asked((each.model,)) for each in shown() if each.model]


def pages() -> Iterator[Page]:
    """Yield the pages of the gallery."""
    files = shown()
    yield Page("index", "".join(_index(files)))
    for each in files:
        yield Page(each.page, "".join(_page(each)))


def _read(path: Path) -> Shown:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        comment = ast.get_docstring(ast.parse(text)) or ""
        model = f"specs/{path.name}:build" if _BUILDER.search(text) else ""
    else:
        lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
        comment = "\n".join(line[1:].removeprefix(" ") for line in lines)
        model = f"specs/{path.name}"
    found = _RESULT.search(comment)
    if model and found is None:
        raise ValueError(f"the comment of {path.name} has no 'Final evaluation: …'")
    result = " ".join(found[1].split()) if found else ""
    return Shown(path.name, _RESULT.sub("", comment).strip(), model, result)


def _index(files: list[Shown]) -> Iterator[str]:
    yield front_matter("All specs of placer, with their placements and their results.")
    yield _INDEX
    yield "\n::::{grid} 1 1 2 2\n:gutter: 3\n:class-container: gallery\n\n"
    for each in files:
        if each.model:
            yield f":::{{grid-item-card}} [{each.file}]({each.page}.md)\n\n"
            yield f"```{{placement}} {each.model}\n:command: hide\n:thumbnail:\n```\n"
            yield f"{_linked(each.sentence)}\n\n"
            yield f"```{{features}} {each.model}\n```\n"
            yield f"Final evaluation: {each.result}\n:::\n\n"
    yield "::::\n\n"
    yield "```{toctree}\n:hidden:\n\n" + "\n".join(f.page for f in files) + "\n```\n"


def _page(each: Shown) -> Iterator[str]:
    yield front_matter(_description(each.sentence))
    yield f"# {each.file}\n\n"
    yield f"{_linked(_text(each))}\n\n"
    if each.model:
        yield f"Result of the final evaluation: {each.result}.\n\n"
        yield f"```{{placement}} {each.model}\n```\n\n"
        if each.file not in _WITH_OPTIONS:
            yield "In a clone of placer, this command trains it:\n\n"
            yield f"```sh\nplacer train {each.model}\n```\n\n"
    else:
        used = [path.name for path in sorted(SPECS.iterdir()) if _uses(path, each.file)]
        yield f"Used by {', '.join(f'[{n}]({page_of(n)}.md)' for n in used)}.\n\n"
    yield "## Source\n\n"
    language = "yaml" if each.file.endswith(".yaml") else "python"
    yield f"```{{literalinclude}} ../../specs/{each.file}\n:language: {language}\n```\n"


def _text(each: Shown) -> str:
    """Return a comment without the commands that most comments have."""
    if each.file in _WITH_OPTIONS:
        return each.comment
    return "\n\n".join(
        text
        for text in each.comment.split("\n\n")
        if text and not text.lstrip().startswith("placer compile")
    )


def _uses(path: Path, file: str) -> bool:
    if path.name == file or path.suffix not in (".yaml", ".py"):
        return False
    name = file.removesuffix(".py")
    return (
        re.search(rf"\b{name}(?:\.py)?\b", path.read_text(encoding="utf-8")) is not None
    )


def _linked(text: str) -> str:
    """Return a comment with links to the pages and specs that it names."""
    text = _PAGE_OF_DOCS.sub(
        lambda m: f"[{Path(m[1]).stem.replace('-', ' ')}](../{m[1]})", text
    )
    return _SPEC.sub(
        lambda m: f"[{m[1]}]({page_of(m[1])}.md)" if (SPECS / m[1]).is_file() else m[0],
        text,
    )


def _description(sentence: str) -> str:
    if len(sentence) <= _DESCRIPTION:
        return sentence
    return sentence[: _DESCRIPTION - 1].rsplit(" ", 1)[0] + "…"
