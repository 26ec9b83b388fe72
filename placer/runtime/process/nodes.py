"""The nodes of one process: one, or several as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from placer.channel.interface import Aborted
from placer.runtime.control.execution import Execution
from placer.runtime.control.result import Outcome
from placer.runtime.node.program_file import Hooks, load_program
from placer.runtime.prediction.predictor import predict
from placer.runtime.prediction.request import PredictionRequest
from placer.runtime.timeline.recording import failure_recorded
from placer.runtime.training_loop.executor import execute
from placer.system.reentry import node_in_thread


def run_nodes(
    executions: Sequence[Execution],
    prediction: PredictionRequest | None,
    on_failure: Callable[[BaseException], None],
) -> Outcome | None:
    """Run the nodes of this process until they end: the first in this thread.

    Args:
        executions: the runs of the nodes.
        prediction: predict these rows instead of training.
        on_failure: called at once with the error of a node that is not that of another
            one: the other nodes may be busy with something else for long.

    Returns:
        The result of the run if the first node is the control node, else None.

    Raises:
        The error of the node that has failed first.
    """
    first, *others = executions
    programs: dict[str, Hooks] = {}
    loading = threading.Lock()

    def load(execution: Execution) -> Hooks:
        """Load a program once for all nodes that run it, so that JAX compiles it once."""
        me = execution.me
        with loading:
            if me.program not in programs:
                hooks = load_program(execution.folder, execution.plan, me)
                programs[me.program] = hooks
            return programs[me.program]

    results: dict[str, Outcome | None] = {}
    errors: dict[str, BaseException] = {}

    def run(execution: Execution) -> None:
        me = execution.me
        try:
            with node_in_thread(me.name), failure_recorded(execution) as recording:
                execution.report_state()
                hooks = load(execution)
                if prediction is not None:
                    results[me.name] = predict(execution, hooks, prediction)
                else:
                    results[me.name] = execute(execution, hooks, recording)
        except BaseException as error:
            errors[me.name] = error
            if not isinstance(error, Aborted):
                on_failure(error)
        finally:
            execution.close()

    threads = [
        threading.Thread(target=run, args=(each,), name=f"placer {each.me.name}")
        for each in others
    ]
    for thread in threads:
        thread.daemon = True  # it does not keep the process from ending
        thread.start()
    run(first)
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors.values(), key=lambda error: isinstance(error, Aborted))
    return results[first.me.name]
