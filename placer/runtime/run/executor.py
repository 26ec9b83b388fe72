"""Run the program of one node: preparation, steps, evaluations, saving, end."""

from __future__ import annotations

import time
from contextlib import ExitStack

from placer.channel.protocol import Aborted
from placer.runtime.metrics.history import HistoryWriter
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.program.devices import Devices, in_precision, open_devices
from placer.runtime.program.exchange import Exchange
from placer.runtime.program.load import Hook, Hooks
from placer.runtime.program.nans import NanCheck
from placer.runtime.program.node import Node
from placer.runtime.program.warm_up import run_warm_up
from placer.runtime.run.barrier import DONE, READY, barrier
from placer.runtime.run.divergence import LossWatch
from placer.runtime.run.events import READING
from placer.runtime.run.handshake import run_handshake
from placer.runtime.run.opened_sources import open_batches
from placer.runtime.run.parameter_files import save
from placer.runtime.run.result import Result
from placer.runtime.run.saving import gather_parameters
from placer.runtime.run.state import Execution
from placer.runtime.run.tables import make_tables
from placer.tables.learning_rate import build_schedule


def execute(execution: Execution, hooks: Hooks) -> Result | None:
    """Run a node's program from the first barrier to the last.

    Args:
        execution: the node's run.
        hooks: those of the program.

    Returns:
        The result of the run on the control node, None on the others.
    """
    plan, channel, options = execution.plan, execution.channel, execution.options
    step, evaluate = hooks.step, hooks.evaluate
    with ExitStack() as contexts:
        devices = contexts.enter_context(open_devices(execution.me, execution.emulates))
        contexts.enter_context(in_precision(plan, execution.me))
        history = HistoryWriter(execution)
        contexts.callback(history.close)
        loss = LossWatch(plan, execution.stopping.request, execution.report)
        metrics = MetricsStream(plan, channel, history, loss)
        execution.report_state("joining")
        channel.join()
        node = execution.node = _prepare(execution, metrics, devices)
        run_handshake(execution, node)
        node.where = "compiling"
        if not options.debug_nans:  # nothing is compiled with debug_nans
            run_warm_up(plan, node, step, evaluate)
        node.where = ""
        barrier(plan, channel, {}, READY)
        if options.debug_nans:
            step = _with_nan_check(execution, node, step)
        with metrics:
            _train(execution, node, metrics, step, evaluate)
        node.where = "after the last step"
        execution.stopping.end_steps()
        loss.check(execution.step, saves=options.save_params is not None)
        parameters = {}
        if options.save_params is not None:
            execution.report_state("saving")
            parameters = gather_parameters(plan, channel, node.tables)
        reports = barrier(plan, channel, {"bytes_sent": channel.bytes_sent}, DONE)
        # From here on no node needs another, so losing one no longer fails the run.
        execution.on_settled()
        if not execution.is_control:
            execution.report_state("done")
            return None
        execution.report_state("writing")
        if options.save_params is not None:
            save(options.save_params, parameters)
        history.close()
        result = Result(
            steps=history.steps,
            metrics=history.metrics,
            eval=history.eval,
            samples_per_second=execution.timing.rate,
            bytes_sent={
                node_plan.name: report["bytes_sent"]
                for node_plan, report in zip(plan.nodes, reports, strict=True)
            },
        )
        execution.report(result)
        execution.report_state("done")
        return result


def _prepare(execution: Execution, metrics: MetricsStream, devices: Devices) -> Node:
    """Create everything that a program needs, except for what the handshake decides."""
    plan, me = execution.plan, execution.me
    tables = make_tables(execution, devices)
    execution.report_state(READING)
    training = open_batches(execution, plan.train, lambda node: node.step)
    evaluating = None
    if (data := plan.evaluation) is not None:
        evaluating = open_batches(execution, data, lambda node: node.evaluation)
    execution.report_state("compiling")
    edges = {edge.id: edge for edge in (*plan.step_edges, *plan.evaluation_edges)}
    return Node(
        me.name,
        Exchange(me.name, execution.channel, edges, plan.workers),
        tables,
        {table.name: build_schedule(table.learning_rate) for table in me.tables},
        training,
        evaluating,
        (me.step, me.evaluation),
        metrics.record,
        devices,
        parts=plan.microbatches,
        turns=me.turns,
    )


def _with_nan_check(execution: Execution, node: Node, step: Hook) -> Hook:
    """Return a `step` that checks the result of each op."""
    plan, me = execution.plan, execution.me
    check = NanCheck(execution.folder, me.program, plan.minimize)
    node.on_record = check.checking_loss(node.on_record)

    def checked_step(node: Node) -> None:
        with check.checked_step():
            step(node)

    return checked_step


def _train(
    execution: Execution,
    node: Node,
    metrics: MetricsStream,
    step: Hook,
    evaluate: Hook | None,
) -> None:
    per_epoch = node.training.order.steps_per_epoch
    total = execution.options.steps
    if total is None:
        total = execution.plan.epochs * per_epoch
    execution.report_state("running")
    for number in range(1, total + 1):
        if execution.channel.aborted is not None:
            raise Aborted(execution.channel.aborted)
        if not execution.stopping.begin_step(number):
            break
        epoch, index = divmod(number - 1, per_epoch)
        node.enter_step(number, epoch + 1, index)
        execution.step = number
        start = time.perf_counter()
        step(node)
        execution.timing.add(time.perf_counter() - start, node.count)
        metrics.end_step(number, epoch + 1, node.count)
        if evaluate and (index + 1 == per_epoch or number == total):
            assert node.evaluating is not None
            execution.report_state("evaluating")
            node.enter_evaluation(number)
            evaluate(node)
            metrics.end_evaluation(number, node.evaluating.epoch_rows)
            execution.report_state("running")
