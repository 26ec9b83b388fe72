"""Shortens paths for messages."""

from __future__ import annotations

from pathlib import Path


def shown_path(path: Path) -> Path:
    """Return a path relative to the working folder if the path is inside it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def home_path(path: Path) -> str:
    """Return a path as text, with `~` for the home folder. A shell expands it if it is not
    quoted."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
