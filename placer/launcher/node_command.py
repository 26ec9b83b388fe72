"""The command line of a node's process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from placer.runtime.control.options import OPTIONS, Options
from placer.runtime.prediction.request import PredictionRequest, write_request
from placer.runtime.process.interpreter import interpreter

PACED: Final = "--paced"


def node_command(
    build: Path,
    node: str,
    *,
    endpoints: Mapping[str, str],
    options: Options,
    paced: bool = False,
    prediction: PredictionRequest | None = None,
    run_id: str = "",
    attempt: int = 0,
) -> list[str]:
    """Return the command line `placer run BUILD --node NODE …` for this interpreter. If
    `paced`, the steps wait for the launcher's callbacks. With `prediction`, the node
    predicts these rows instead of training. `run_id` is the id of a run with `--restarts`, and
    `attempt` the attempt of a process that takes the place of another one."""
    command = [*interpreter(), "run", str(build), "--node", node]
    listed = ",".join(f"{name}={address}" for name, address in endpoints.items())
    command += ["--endpoints", listed, *node_arguments(options)]
    command += [PACED] if paced else []
    command += ["--run-id", run_id] if run_id else []
    command += ["--attempt", str(attempt)] if attempt else []
    if prediction is not None:
        command += ["--prediction", write_request(prediction)]
    return command


def node_arguments(options: Options) -> list[str]:
    """Return the arguments that pass options to the process of a node."""
    arguments = []
    for option in OPTIONS:
        value = getattr(options, option.name)
        if value != option.default:
            is_flag = option.default is False
            arguments.append(option.flag if is_flag else f"{option.flag}={value}")
    return arguments
