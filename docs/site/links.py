"""Changes links to files of the checkout into links of the site."""

from __future__ import annotations

import posixpath
import re
import tomllib
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from docs.site.gallery import page_of
from docs.site.paths import ROOT

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s:#]+)(#[\w-]*)?\)")
_INCLUDE = re.compile(r"^```\{include\} (\S+\.md)\n```$", re.MULTILINE)
_FENCED = re.compile(
    r"(^ *`{3,}[^`\n]*\n(?:.*\n)*?^ *`{3,} *$|^ *~{3,}[^\n]*\n(?:.*\n)*?^ *~{3,} *$)",
    re.MULTILINE,
)
_PAGES: Final = {
    "CONTRIBUTING.md": "docs/about/contributing.md",
    "CHANGELOG.md": "docs/about/changelog.md",
    "README.md": "docs/index.md",
}
"""The pages of files at the top of the checkout."""


def change_links(text: str, page: str, source: str = "") -> str:
    """Return a page whose links outside of blocks lead to pages of the site.

    A link to a spec becomes one to its page in the gallery. A link to another file outside
    of `docs` becomes one to the repository, if pyproject.toml has its address; else its
    text remains. A block `{include} FILE.md` becomes the text of the file.

    Args:
        page: the path of the page in the checkout, such as "docs/learn/places.md".
        source: the path of the file that has the text. Default: the page.
    """
    source = source or page
    parts = _FENCED.split(text)  # every other part is a block
    parts[::2] = [_LINK.sub(lambda m: _link(m, page, source), p) for p in parts[::2]]
    return _INCLUDE.sub(lambda m: _included(m[1], page), "".join(parts))


def _included(file: str, page: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), file))
    return change_links((ROOT / path).read_text(encoding="utf-8"), page, path)


def _link(found: re.Match[str], page: str, source: str) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in _PAGES:
        path = _PAGES[path]
    elif path.startswith("specs/") and (ROOT / path).is_file():
        path = f"docs/gallery/{page_of(PurePosixPath(path).name)}.md"
    elif path == "specs":
        path = "docs/gallery/index.md"
    if path.startswith("docs/"):
        return f"[{text}]({posixpath.relpath(path, posixpath.dirname(page))}{anchor})"
    if not (ROOT / path).exists():
        return found[0]  # Sphinx reports it.
    address = repository()
    return f"[{text}]({address}/blob/main/{path}{anchor})" if address else text


@cache
def repository() -> str:
    """Return the address of the repository, or "" if pyproject.toml has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    urls: dict[str, str] = project["project"].get("urls", {})
    return urls.get("Repository", "").rstrip("/")
