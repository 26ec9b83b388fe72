"""The checkpoint that all nodes of a run start from, if `--init-params` names a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from placer.checkpoint.choice import last_good
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.options import Options


def choose_start(options: Options, report: Callable[[NodeWarning], None]) -> Options:
    """Return options that name the checkpoint to take, if `--init-params` names a folder
    of checkpoints.

    All nodes of a run take it, also while another run writes to that folder, and its
    files are verified once. Raises CheckpointError if there is none.
    """
    if options.init_params is None or not options.init_params.is_dir():
        return options
    chosen = last_good(options.init_params, lambda why: report(NodeWarning(why)))
    return replace(options, init_params=chosen.folder)
