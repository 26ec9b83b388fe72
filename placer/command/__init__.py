"""The command line: `main` runs it, and each command calls the library and prints."""

from placer.command.cli import main

__all__ = ["main"]
