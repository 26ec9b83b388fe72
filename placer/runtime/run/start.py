"""Open the parameters that a run starts from, and check that they fit the model."""

from __future__ import annotations

from placer.runtime.run.events import NodeWarning
from placer.runtime.run.row_files import holds_rows
from placer.runtime.run.start_parameters import check_start, open_parameters
from placer.runtime.run.state import Execution
from placer.types import TensorType


def open_start(execution: Execution) -> None:
    """Set `execution.start` to the parameters that `--init-params` names, if it names any
    and the node has tables. Warns of damaged checkpoints of a folder.

    Raises:
        DataError: for a file or checkpoint that cannot be read or does not fit the
            model.
        CheckpointError: if a folder has no checkpoint, or a checkpoint is damaged.
    """
    path, plan, me = execution.options.init_params, execution.plan, execution.me
    if path is None or not (me.tables or holds_rows(plan, me.name)):
        return
    start = open_parameters(
        path,
        lambda why: execution.report(NodeWarning(f"{me.name}: {why}")),
        finite=plan.nan == "stop",
    )
    declared = {p.name: TensorType(p.dtype, p.shape) for p in plan.parameters}
    check_start(start, declared, {each.name: each for each in plan.sparse_tables})
    execution.start = start
