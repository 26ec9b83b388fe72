"""Defines the Python command line and environment variables of a node."""

from __future__ import annotations

import sys
from typing import Final

COMMAND: Final = "placer.command"
"""The module of placer's command line."""
NODE_VARIABLES: Final = {"PYTHONHASHSEED": "0"}
"""Environment variables of a node. A fixed hash seed gives sets of strings the same order on
all nodes."""


def interpreter(module: str = COMMAND, python: str | None = None) -> list[str]:
    """Return the start of a command line that runs a module in the way nodes run.

    Args:
        module: the module.
        python: the path of the interpreter; by default this interpreter.
    """
    # -P: modules in the working folder must not shadow installed modules.
    # -u: the log must be complete even if the process is killed.
    return [python or sys.executable, "-P", "-u", "-X", "faulthandler", "-m", module]
