"""Writes a page: one HTML file that opens without a network."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from string import Template

from placer.errors import PlacerError
from placer.report.page.details_blob import pack_details
from placer.report.page.facts import Page
from placer.report.page.picture import read_style
from placer.report.page.run_sections import errors_of
from placer.report.page.sections import sections
from placer.report.page.svg import element, text
from placer.system.files.atomic import atomic_file, mode_of

_OTHER_PATH = "choose another path with --out"
_STYLES = ("colors.css", "picture.css", "charts.css", "page.css")


def page_html(page: Page) -> str:
    """Return a page as HTML. Equal facts have equal text.

    The policy of the page allows only its own style sheet and script, by their digests. A
    browser runs no other script and loads nothing.
    """
    style = "".join(map(read_style, _STYLES))
    script = read_style("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )
    parts = list(sections(page))
    can_search = page.placement is not None and page.details is not None
    details = ""
    if page.placement is not None and page.details is not None:
        packed = pack_details(page.placement, page.details)
        details = element("script", packed, type="application/gzip", id="details")
    return Template(read_style("page.html")).substitute(
        policy=text(policy),
        title=text(f"{page.title} · placer report"),
        heading=text(page.title),
        style=style,
        totals="".join(
            element("div", element("dt", text(t.label)), element("dd", text(t.value)))
            for t in page.totals
        ),
        errors=errors_of(page.runs),
        nav="".join(
            element("a", text(part.title), href=f"#{part.name}") for part in parts
        ),
        search=_search() if can_search else "",
        sections="\n".join(
            element(
                "section",
                element("h2", text(part.title), id=f"{part.name}-title"),
                part.content,
                id=part.name,
                aria_labelledby=f"{part.name}-title",
            )
            for part in parts
        ),
        command=text(page.command),
        details=details,
        script=script,
    )


def write_text(content: str, path: Path) -> None:
    """Write a text file atomically.

    Raises:
        PlacerError: the file cannot be written.
    """
    if os.path.isdir(path):
        hint = f"name a file in the folder: --out {path / 'report.html'}"
        raise PlacerError(f"cannot write '{path}': it is a folder", hint=hint)
    if os.path.exists(path) and not os.path.isfile(path):  # such as /dev/stdout
        raise PlacerError(
            f"cannot write '{path}': it is not a regular file", hint=_OTHER_PATH
        )
    try:
        with atomic_file(path, mode_of(path)) as file:
            file.write(content.encode("utf-8"))
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise PlacerError(
            f"cannot write '{path}': {error.strerror}",
            hint=f"create the folder: mkdir -p {path.parent}"
            if is_missing
            else _OTHER_PATH,
        ) from error


def _search() -> str:
    return element(
        "div",
        element(
            "input",
            id="search",
            type="search",
            placeholder="Find an op, a layer or a parameter ( / )",
            autocomplete="off",
            spellcheck="false",
            role="combobox",
            aria_label="Find an op, a layer or a parameter",
            aria_expanded="false",
            aria_controls="found",
            aria_autocomplete="list",
        ),
        element("ul", id="found", role="listbox", aria_label="Found", hidden=True),
        class_="search",
    )


def _digest(content: str) -> str:
    """Return the digest of a style sheet or a script, as policies name it."""
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
