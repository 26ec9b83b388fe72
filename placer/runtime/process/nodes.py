"""Runs the nodes of one process; several nodes run as threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from placer.channel.interface import Aborted
from placer.runtime.control.execution import Execution
from placer.runtime.control.result import Outcome
from placer.runtime.node.program_file import Programs
from placer.runtime.prediction.predictor import predict
from placer.runtime.prediction.request import PredictionRequest
from placer.runtime.timeline.recording import failure_recorded
from placer.runtime.training_loop.executor import execute
from placer.system.owned_threads import OwnedThreads
from placer.system.reentry import node_in_thread


def run_nodes(
    executions: Sequence[Execution],
    programs: Programs,
    prediction: PredictionRequest | None,
    on_failure: Callable[[BaseException], None],
) -> Outcome | None:
    """Run the nodes of this process until they end. The first runs in this thread.

    Args:
        executions: the runs of the nodes.
        programs: the programs of the process.
        prediction: predict these rows instead of training.
        on_failure: called immediately with the error of a node that fails, because the
            other nodes may be busy for a long time.

    Returns:
        The result of the run if the first node is the control node, else None.

    Raises:
        Exception: the error of the node that failed first.
    """
    first, *others = executions
    threads = OwnedThreads()
    failures: list[BaseException] = []

    def run(execution: Execution) -> Outcome | None:
        try:
            execution.waits.begin()
            execution.report_state()
            return run_node(execution, programs, prediction)
        except Aborted:
            raise
        except BaseException as error:
            failures.append(error)
            on_failure(error)
            raise
        finally:
            execution.close()

    ends = [begin_run(threads, run, each) for each in others]
    end: Future[Outcome | None] = Future()
    _settle(end, run, first)
    threads.join()
    if failures:
        raise failures[0]
    return result_of([end, *ends])


def run_node(
    execution: Execution, programs: Programs, prediction: PredictionRequest | None
) -> Outcome | None:
    """Train or predict with a node in this thread; only the control node has a result."""
    with node_in_thread(execution.me.name), failure_recorded(execution) as recording:
        hooks = programs.load(execution.me)
        if prediction is not None:
            return predict(execution, hooks, prediction)
        return execute(execution, hooks, recording)


def begin_run(
    threads: OwnedThreads,
    run: Callable[[Execution], Outcome | None],
    execution: Execution,
) -> Future[Outcome | None]:
    """Call `run` for a node in a new thread; return a future with the result."""
    end: Future[Outcome | None] = Future()
    name = f"placer {execution.me.name}"
    threads.begin(partial(_settle, end, run, execution), name)
    return end


def result_of(ends: Sequence[Future[Outcome | None]]) -> Outcome | None:
    """Wait for all nodes, and return the result of the first.

    If nodes have failed, raise the first error that another node did not cause.
    """
    errors = [error for end in ends if (error := end.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Aborted))
    return ends[0].result()


def _settle(
    end: Future[Outcome | None],
    run: Callable[[Execution], Outcome | None],
    execution: Execution,
) -> None:
    try:
        end.set_result(run(execution))
    except BaseException as error:
        end.set_exception(error)
