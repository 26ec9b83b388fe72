"""Builds the environment variables of a node's process."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path

import placer
from placer.channel.keys import VARIABLE as KEY_FILE
from placer.runtime.process.interpreter import NODE_VARIABLES


def node_environment(key_fd: int) -> dict[str, str]:
    """Return the environment variables of a node's process.

    PLACER_KEY_FILE names the inherited descriptor `key_fd`. PYTHONHASHSEED is set, unless
    the user has set it, so that sets of strings have the same order on all nodes.
    """
    variables = {**NODE_VARIABLES, **python_environment()}
    variables[KEY_FILE] = f"/proc/self/fd/{key_fd}"
    return variables


def python_environment() -> dict[str, str]:
    """Return the environment variables of this process.

    If placer runs from a checkout and is not installed, PYTHONPATH starts with the checkout.
    """
    variables = {**os.environ}
    root = Path(placer.__file__).resolve().parents[1]
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    installed.append(site.getusersitepackages())
    if root not in {Path(path).resolve() for path in installed}:
        rest = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = str(root) + (os.pathsep + rest if rest else "")
    return variables
