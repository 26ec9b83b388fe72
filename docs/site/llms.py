"""Writes `llms.txt`, a list of all pages, and `llms-full.txt`, their Markdown."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


_SUMMARY = (
    "placer trains one JAX model on several machines. Place strings say where each op and"
    " each parameter lives, and placer writes one readable program per node."
)


def pages_in_order(environment: BuildEnvironment) -> list[str]:
    """Return the names of all pages, in the order of the navigation."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in found:
            found[name] = None
            for child in environment.toctree_includes.get(name, []):
                visit(child)

    visit(environment.config.root_doc)
    others = sorted(environment.found_docs - found.keys() - {"404"})
    return [*found, *others]


def description_of(environment: BuildEnvironment, name: str) -> str:
    """Return the description in the front matter of a page."""
    return str(environment.metadata.get(name, {}).get("description", ""))


def _list(app: Sphinx) -> Iterator[str]:
    yield f"# placer\n\n> {_SUMMARY}\n"
    for name in pages_in_order(app.env):
        title = app.env.titles[name].astext()
        description = description_of(app.env, name)
        yield f"- [{title}]({name}.html){f': {description}' if description else ''}"


def _full(app: Sphinx) -> Iterator[str]:
    for name in pages_in_order(app.env):
        text = Path(app.env.doc2path(name)).read_text(encoding="utf-8")
        if text.startswith("---\n"):
            text = text.split("\n---\n", 1)[1]
        if "```{eval-rst}" in text:
            text = _rendered(app, name)
        yield f"<!-- {name}.html -->\n\n{text.strip()}\n"


def _rendered(app: Sphinx, name: str) -> str:
    """Return a page as plain text, with the docstrings that its directives name."""
    from sphinx.writers.text import TextTranslator

    document = app.env.get_doctree(name)
    # It reads the configuration of the builder, which is the same.
    builder: Any = app.builder
    translator = TextTranslator(document, builder)
    document.walkabout(translator)
    return str(translator.body)


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir)
        for name, lines in (("llms.txt", _list), ("llms-full.txt", _full)):
            text = "\n".join(lines(app)) + "\n"
            (folder / name).write_text(text, encoding="utf-8")


def _add_description(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, object],
    doctree: nodes.document,
) -> None:
    """Make the description of a page that of its HTML."""
    description = description_of(app.env, page) if page in app.env.found_docs else ""
    if description:
        tag = f'<meta name="description" content="{html.escape(description)}">'
        context["metatags"] = f"{context.get('metatags', '')}\n{tag}"


def setup(app: Sphinx) -> dict[str, object]:
    """Write both files after a build."""
    app.connect("build-finished", _write)
    app.connect("html-page-context", _add_description)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
