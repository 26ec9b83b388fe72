"""The command line. Each command calls the library and prints the result."""

import sys

import placer

# Another program with a package `placer` can replace `placer/__init__.py`, whose names the
# commands use.
if not hasattr(placer, "PlacerError"):
    from placer.system.distribution import explain_replaced_package

    error = explain_replaced_package(placer.__path__[0])
    sys.stderr.write(f"{error}\n")
    sys.exit(error.exit_status)

from placer.command.cli import main

__all__ = ["main"]
