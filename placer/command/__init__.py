"""The command line. Each command calls the library and prints the result."""

from placer.command.cli import main

__all__ = ["main"]
