"""The command line and the environment of a node's process."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import placer
from placer.channel.keys import VARIABLE as KEY_FILE
from placer.runtime.run.options import OPTIONS, Options
from placer.runtime.run.prediction_request import PredictionRequest, write_request


def node_command(
    build: Path,
    node: str,
    *,
    endpoints: Mapping[str, str],
    options: Options,
    prediction: PredictionRequest | None = None,
) -> list[str]:
    """Return the command line `placer run BUILD --node NODE …` for this interpreter.

    With `prediction`, the node predicts these rows instead of training.
    """
    command = [*interpreter("placer.command"), "run", str(build), "--node", node]
    listed = ",".join(f"{name}={address}" for name, address in endpoints.items())
    command += ["--endpoints", listed, *node_arguments(options)]
    if prediction is not None:
        command += ["--prediction", write_request(prediction)]
    return command


def interpreter(module: str) -> list[str]:
    """Return the words that run a module with this interpreter, as a node runs."""
    # -P: modules in the working folder must not shadow installed ones.
    # -u: the log must be complete even if the process is killed.
    return [sys.executable, "-P", "-u", "-X", "faulthandler", "-m", module]


def node_arguments(options: Options) -> list[str]:
    """Return the arguments that pass the options on to the process of a node."""
    arguments = []
    for option in OPTIONS:
        value = getattr(options, option.name)
        if value != option.default:
            is_flag = option.default is False
            arguments.append(option.flag if is_flag else f"{option.flag}={value}")
    return arguments


def node_environment(key_fd: int) -> dict[str, str]:
    """Return the environment of a node's process.

    It adds to the environment of this process: PLACER_KEY_FILE, which names the descriptor
    `key_fd` that the node inherits; PYTHONHASHSEED, unless it is set, so
    that sets of strings have the same order on all nodes; and, for a checkout that is
    not installed, the checkout at the start of PYTHONPATH.
    """
    variables = {"PYTHONHASHSEED": "0", **os.environ}
    variables[KEY_FILE] = f"/proc/self/fd/{key_fd}"
    root = Path(placer.__file__).resolve().parents[1]
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    installed.append(site.getusersitepackages())
    if root not in {Path(path).resolve() for path in installed}:
        rest = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = str(root) + (os.pathsep + rest if rest else "")
    return variables
