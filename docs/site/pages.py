"""Generated pages: their front matter, and writing them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Page(NamedTuple):
    """A page: its name without a suffix, and its Markdown."""

    name: str
    text: str


def front_matter(description: str) -> str:
    """Return the front matter of a page."""
    return f"---\ndescription: {json.dumps(description, ensure_ascii=False)}\n---\n"


def write(folder: Path, pages: Iterable[Page]) -> None:
    """Write all pages of a folder, and remove other pages from it."""
    pages = list(pages)
    for file in set(folder.glob("*.md")) - {_file(folder, page) for page in pages}:
        file.unlink()
    for page in pages:
        write_page(folder, page)


def write_page(folder: Path, page: Page) -> None:
    """Write one page of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _file(folder, page).write_text(page.text, encoding="utf-8")


def _file(folder: Path, page: Page) -> Path:
    return folder / f"{page.name}.md"
