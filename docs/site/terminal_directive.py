"""The directive `{terminal} COMMAND`: a command of placer, and what it prints.

```{terminal} placer show specs/digits.yaml
```
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.site.terminal import output


class TerminalDirective(SphinxDirective):
    """Shows a command, and its output in 80 columns with its colors."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the command and of its output."""
        command = self.arguments[0]
        try:
            printed = output(command)
        except ValueError as error:
            raise self.error(str(error)) from error
        html = f'<pre class="terminal" tabindex="0">{printed}</pre>'
        return [
            nodes.literal_block(command, command, language="sh"),
            nodes.raw("", html, format="html"),
        ]


def setup(app: Sphinx) -> dict[str, object]:
    """Add the directive to Sphinx."""
    app.add_directive("terminal", TerminalDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
