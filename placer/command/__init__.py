"""The command line. `main` runs it; each command calls the library and prints."""

from placer.command.cli import main

__all__ = ["main"]
