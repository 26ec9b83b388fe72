"""Keeps pictures and outputs of commands, by the content that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

from docs.site.paths import CACHE, ROOT

_SOURCES = (
    "placer",
    "grammar",
    "specs",
    "docs/site/placements.py",
    "docs/site/terminal.py",
)


@cache
def _sources() -> bytes:
    """Return a digest of all files that a command of placer reads."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        for path in (ROOT / name, *sorted((ROOT / name).rglob("*"))):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(ROOT)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def cached(kind: str, content: str, make: Callable[[], str]) -> str:
    """Return the text that `make` returns for a content, from the cache if it is there.

    Args:
        kind: the kind of the text, which is the suffix of its file.
        content: everything that the text depends on, except the sources of placer.
    """
    name = hashlib.sha256(_sources() + f"{kind}\0{content}".encode()).hexdigest()[:32]
    file = CACHE / f"{name}.{kind}"
    if not file.is_file():
        text = make()
        CACHE.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(file)  # a concurrent build reads all of a file or none
    return file.read_text(encoding="utf-8")
