"""Chooses the checkpoint for a run whose `--init-params` names a folder of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from placer.checkpoint.choice import last_good
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.options import Options


def choose_start(options: Options, report: Callable[[NodeWarning], None]) -> Options:
    """Replace a folder of checkpoints in `--init-params` with one checkpoint of the folder.

    All nodes then use the same checkpoint, even while another run writes to the folder. Its
    files are verified only once.

    Raises:
        CheckpointError: if the folder has no intact checkpoint.
    """
    if options.init_params is None or not options.init_params.is_dir():
        return options
    chosen = last_good(options.init_params, lambda why: report(NodeWarning(why)))
    return replace(options, init_params=chosen.folder)
