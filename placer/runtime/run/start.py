"""Open the parameters that a run starts from, and check that they fit the model."""

from __future__ import annotations

from placer.errors import DataError
from placer.runtime.run.events import NodeWarning
from placer.runtime.run.parameter_files import check
from placer.runtime.run.row_files import compare_sparse, holds_rows
from placer.runtime.run.start_parameters import StartParameters, open_parameters
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
        path, lambda why: execution.report(NodeWarning(f"{me.name}: {why}"))
    )
    declared = {p.name: TensorType(p.dtype, p.shape) for p in plan.parameters}
    check(start.types, declared)
    _check_rows(execution, start)
    execution.start = start


def _check_rows(execution: Execution, start: StartParameters) -> None:
    plan = execution.plan
    if not plan.sparse_tables:
        return
    if start.checkpoint is None:
        listed = ", ".join(f"'{table.name}'" for table in plan.sparse_tables)
        raise DataError(
            f"{start.file} has no rows of the sparse tables of the model: {listed}",
            hint="only checkpoints have the rows of sparse tables; name one of a run with"
            " --checkpoint",
        )
    missing, changed, _ = compare_sparse(start.checkpoint.manifest, plan)
    problems = [f"{name} is not in it" for name in missing] + changed
    if problems:
        raise DataError(
            f"the sparse tables of {start.checkpoint.folder} do not fit the model:"
            f" {'; '.join(problems)}"
        )
