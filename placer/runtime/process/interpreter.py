"""How Python runs a node: the beginning of its command line, and its environment."""

from __future__ import annotations

import sys
from typing import Final

COMMAND: Final = "placer.command"
"""The module of the command line."""
NODE_VARIABLES: Final = {"PYTHONHASHSEED": "0"}
"""Variables of the environment of a node. Sets of strings have the same order on all
nodes."""


def interpreter(module: str = COMMAND, python: str | None = None) -> list[str]:
    """Return the words that run a module as a node runs, with this interpreter or another
    one."""
    # -P: modules in the working folder must not shadow installed ones.
    # -u: the log must be complete even if the process is killed.
    return [python or sys.executable, "-P", "-u", "-X", "faulthandler", "-m", module]
