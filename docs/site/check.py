"""Checks the links and the signatures of the built pages, also in HTML that Sphinx does not read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LOADED: Final = {
    ("img", "src"),
    ("script", "src"),
    ("link", "href"),
    ("source", "src"),
}
_INTERNAL: Final = ("msgspec.", "&lt;factory&gt;", "~typing.")
"""Words of types and defaults that the reference of Python must not show."""
_METADATA: Final = {"canonical", "alternate"}


class _Reader(HTMLParser):
    """Collects the identifiers of a page, its links, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in _METADATA:
            return
        self.loaded += [values[a] for t, a in _LOADED if t == tag and a in values]


def problems(site: Path) -> Iterator[str]:
    """Yield a sentence for each link without a target, each request to another host, and
    each signature with a type that has no meaning to readers.

    Args:
        site: the folder of the built pages.
    """

    @cache
    def read(file: Path) -> _Reader:
        reader = _Reader()
        reader.feed(file.read_text(encoding="utf-8"))
        return reader

    for file in sorted((site / "reference" / "api").glob("*.html")):
        text = file.read_text(encoding="utf-8")
        for word in (word for word in _INTERNAL if word in text):
            yield f"{file.relative_to(site)}: a signature shows '{word}'"
    for file in sorted(site.rglob("*.html")):
        if file.is_relative_to(site / "_static"):
            continue  # templates of the theme
        page = read(file)
        for address in dict.fromkeys([*page.links, *page.loaded]):
            parts = urlsplit(address)
            name = file.relative_to(site)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    yield f"{name}: loads {address} from another host"
                continue
            target = _target(site, file, unquote(parts.path))
            if not target.is_file():
                yield f"{name}: no file for {address}"
            elif (
                parts.fragment  # `#` alone is the top of a page
                and target.suffix == ".html"
                and unquote(parts.fragment) not in read(target).ids
            ):
                yield f"{name}: no anchor for {address}"


def _target(site: Path, file: Path, path: str) -> Path:
    if not path:
        return file
    target = site / path[1:] if path.startswith("/") else file.parent / path
    return target / "index.html" if path.endswith("/") else target
