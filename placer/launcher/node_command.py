"""The command line that a node's process is started with, and its environment."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import placer


def node_command(
    build: Path,
    node: str,
    *,
    endpoints: Mapping[str, str],
    options: Mapping[str, object],
) -> list[str]:
    """`placer run BUILD --node NODE …` with this interpreter.

    `options` are the command's, by name (`save_params`); those that are None or False
    are left out.
    """
    # -P: the working folder's modules are not to take the place of installed ones;
    # -u: a log is whole even if its process is killed.
    command = [sys.executable, "-P", "-u", "-X", "faulthandler", "-m", "placer.command"]
    command += ["run", str(build), "--node", node]
    listed = ",".join(f"{name}={address}" for name, address in endpoints.items())
    command += ["--endpoints", listed]
    for name, value in options.items():
        if value is True:
            command += [f"--{name.replace('_', '-')}"]
        elif value is not None and value is not False:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def environment(job: str) -> dict[str, str]:
    """This process's environment, in which the same placer is found, and the run's
    secret, which no other user of the machine can read there.

    A bare checkout is no installed package: there PYTHONPATH begins with it. Sets of
    text have the same order on all nodes, unless PYTHONHASHSEED is set already.
    """
    found = {"PYTHONHASHSEED": "0", **os.environ, "PLACER_JOB": job}
    root = Path(placer.__file__).resolve().parents[1]
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    installed.append(site.getusersitepackages())
    if root not in {Path(path).resolve() for path in installed}:
        rest = found.get("PYTHONPATH")
        found["PYTHONPATH"] = str(root) + (os.pathsep + rest if rest else "")
    return found
