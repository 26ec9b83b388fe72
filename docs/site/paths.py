"""The folders of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
SPECS: Final = ROOT / "specs"
OUT: Final = ROOT / "build" / "docs"
HTML: Final = OUT / "html"
CACHE: Final = OUT / "cache"

API: Final = DOCS / "reference" / "api"
GALLERY: Final = DOCS / "gallery"
COMMAND_LINE: Final = DOCS / "reference" / "command-line"
OPS: Final = DOCS / "reference" / "ops"
