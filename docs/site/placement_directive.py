"""The directive `{placement} SPEC`: the command that draws a placement, and the picture.

    ```{placement} specs/digits.yaml --set train.optimizer.place=/node:worker/cpu
    :alt: Two workers without a server
    ```

The spec is a file of the checkout, or a block of the page that begins with its name, such
as `# model.yaml`. Options:

- `:command: hide`: do not show the command.
- `:alt:`: what the picture shows, for readers who cannot see it.
- `:thumbnail:`: a small picture without a link.

`{features} SPEC` lists the nodes of a placement, and what the model uses.
"""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path
from typing import ClassVar, Final

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.site.placements import Placed, asked, placed, themed

_FOLDER: Final = "_images"
_SIZE = re.compile(r' (width|height)="(\d+)"')


def _hide(argument: str) -> str:
    return str(directives.choice(argument, ("hide",)))


class PlacementDirective(SphinxDirective):
    """Shows the command that draws a placement, and the picture."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "command": _hide,
        "alt": directives.unchanged_required,
        "thumbnail": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the command and of the picture."""
        words = self.arguments[0].split()
        found = _placed(self, words)
        alt = self.options.get("alt", f"Placement of {words[0]}: {found.nodes}")
        content: list[nodes.Node] = []
        if "command" not in self.options:
            command = f"placer report {' '.join(words)} --svg"
            content.append(nodes.literal_block(command, command, language="sh"))
        shown = _html(self, found, alt, is_thumbnail="thumbnail" in self.options)
        content.append(nodes.raw("", shown, format="html"))
        return content


class FeaturesDirective(SphinxDirective):
    """Lists the nodes of a placement, and what the model uses."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return a line with a label for each."""
        found = _placed(self, self.arguments[0].split())
        labels = "".join(
            f'<span class="feature">{name}</span>'
            for name in (found.nodes, *found.features)
        )
        return [nodes.raw("", f'<p class="features">{labels}</p>', format="html")]


def _placed(directive: SphinxDirective, words: list[str]) -> Placed:
    page = Path(directive.env.doc2path(directive.env.docname)).read_text("utf-8")
    try:
        return placed(asked(words, page))
    except ValueError as error:
        raise directive.error(str(error)) from error


def _html(
    directive: SphinxDirective, found: Placed, alt: str, *, is_thumbnail: bool
) -> str:
    """Write the pictures of both themes, and return the HTML that shows one of them."""
    folder = Path(directive.env.app.outdir) / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    size = dict(_SIZE.findall(found.svg[:1000]))
    root = "../" * directive.env.docname.count("/") + _FOLDER
    parts = []
    for theme, svg in themed(found.svg).items():
        name = f"placement-{hashlib.sha256(svg.encode()).hexdigest()[:16]}.svg"
        (folder / name).write_text(svg, encoding="utf-8")
        image = (
            f'<img class="dark-light" src="{root}/{name}" alt="{html.escape(alt)}"'
            f' width="{size["width"]}" height="{size["height"]}" loading="lazy">'
        )
        if not is_thumbnail:
            image = f'<a href="{root}/{name}" title="Open the picture">{image}</a>'
        parts.append(f'<div class="only-{theme}">{image}</div>')
    kind = "thumbnail" if is_thumbnail else "placement"
    return f'<div class="{kind}">{"".join(parts)}</div>'


def setup(app: Sphinx) -> dict[str, object]:
    """Add the directives to Sphinx."""
    app.add_directive("placement", PlacementDirective)
    app.add_directive("features", FeaturesDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
