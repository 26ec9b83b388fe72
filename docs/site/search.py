"""Gives the search the description and the keywords of each page, from its front matter.

`assets/search.js` reads them from the search page.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx


def _add_words(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, object],
    doctree: nodes.document,
) -> None:
    """Add the words of all pages to the search page."""
    if page != "search":
        return
    words = {
        name: [str(fields.get(key, "")) for key in ("description", "keywords")]
        for name, fields in sorted(app.env.metadata.items())
    }
    text = json.dumps(words, ensure_ascii=False).replace("<", "\\u003c")
    tag = f'<script type="application/json" id="page-words">{text}</script>'
    context["metatags"] = f"{context.get('metatags', '')}\n{tag}"


def setup(app: Sphinx) -> dict[str, object]:
    """Add the words when the search page is written."""
    app.connect("html-page-context", _add_words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
