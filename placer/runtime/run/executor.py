"""Runs one node's program: start, steps, evaluations, saving, end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict

from placer.build.plan import Data, Phase, read_sources
from placer.build.plan import Node as NodePlan
from placer.channel.protocol import Aborted
from placer.runtime.metrics.history import Lines
from placer.runtime.metrics.stream import Metrics
from placer.runtime.program.devices import Devices, in_precision, opened
from placer.runtime.program.exchange import Exchange
from placer.runtime.program.microbatches import Microbatches
from placer.runtime.program.nans import NanCheck
from placer.runtime.program.node import Node
from placer.runtime.program.warm_up import rehearse
from placer.runtime.run.barrier import DONE, READY, barrier
from placer.runtime.run.batches import Batches, open_batches
from placer.runtime.run.divergence import LossWatch
from placer.runtime.run.events import READING
from placer.runtime.run.handshake import Told, agree
from placer.runtime.run.parameter_files import save
from placer.runtime.run.same_rows import EVALUATION, TRAINING, compare_rows
from placer.runtime.run.saving import gather
from placer.runtime.run.state import Execution, Hook, Result
from placer.runtime.run.tables import make_tables
from placer.tables.learning_rate import schedule


def execute(execution: Execution, step: Hook, evaluate: Hook | None) -> Result | None:
    """Run a node's program from the first barrier to the last.

    The control node returns the Result, the others None.
    """
    plan, channel, options = execution.plan, execution.channel, execution.options
    with ExitStack() as entered:
        devices = entered.enter_context(opened(execution.me, execution.emulates))
        entered.enter_context(in_precision(plan, execution.me))
        history = options.history if execution.is_control else None
        lines = entered.enter_context(
            Lines(plan, history, execution.report, lambda: execution.timing.rate)
        )
        loss = LossWatch(plan, execution.stopping.request, execution.report)
        metrics = Metrics(plan, channel, lines, loss)
        execution.tell("joining")
        channel.join()
        node = execution.node = _prepare(execution, metrics, devices)
        _agree(execution, node)
        sizes = [b.sizes if b else () for b in (node.training, node.evaluating)]
        node.where = "compiling"
        if not options.debug_nans:  # which compiles nothing
            rehearse(plan, execution.me, node, (step, evaluate), (sizes[0], sizes[1]))
        node.where = ""
        barrier(plan, channel, {}, READY)
        if options.debug_nans:
            step = _checked(execution, node, step)
        with metrics:
            _train(execution, node, metrics, step, evaluate)
        node.where = "after the last step"
        execution.stopping.end()
        loss.check(execution.step, saves=options.save_params is not None)
        whole = {}
        if options.save_params is not None:
            execution.tell("saving")
            whole = gather(plan, channel, node.tables)
        told = barrier(plan, channel, {"bytes_sent": channel.bytes_sent}, DONE)
        # From here on no node needs another: the loss of one is no failure of the run.
        execution.settle()
        if not execution.is_control:
            execution.tell("done")
            return None
        execution.tell("writing")
        if options.save_params is not None:
            save(options.save_params, whole)
        lines.close()
        result = Result(
            steps=lines.steps,
            metrics=lines.metrics,
            eval=lines.eval,
            samples_per_second=execution.timing.rate,
            bytes_sent={
                n.name: t["bytes_sent"] for n, t in zip(plan.nodes, told, strict=True)
            },
        )
        execution.report({"event": "result", **asdict(result)})
        execution.tell("done")
        return result


def _prepare(execution: Execution, metrics: Metrics, devices: Devices) -> Node:
    """Everything a program needs, but for what the nodes agree on."""
    plan, me = execution.plan, execution.me
    given, share = execution.options.init_params, execution.channel.share
    build = execution.folder
    tables = make_tables(plan, me, build, given, share, devices)
    spec = (build / read_sources(build).spec).parent
    execution.tell(READING)

    def batches(data: Data, of: Callable[[NodePlan], Phase | None]) -> Batches:
        execution.rows_read = 0
        phases = {node.name: of(node) for node in plan.nodes}
        report = execution.report_rows
        return open_batches(plan, data, phases, me.name, build, spec, report)

    training = batches(plan.train, lambda node: node.step)
    evaluating = None
    if plan.evaluation is not None:
        evaluating = batches(plan.evaluation, lambda node: node.evaluation)
    execution.tell("compiling")
    edges = {e.id: e for e in (*plan.step_edges, *plan.evaluation_edges)}
    return Node(
        me.name,
        Exchange(me.name, execution.channel, edges, plan.workers),
        tables,
        {table.name: schedule(table.learning_rate) for table in me.tables},
        training,
        evaluating,
        (me.step, me.evaluation),
        metrics.record,
        devices,
        Microbatches(plan.microbatches, me.turns),
    )


def _agree(execution: Execution, node: Node) -> None:
    """Hear how many rows there are from those that read them."""
    options = execution.options
    told = Told(
        training_rows=node.training.own_rows,
        evaluation_rows=node.evaluating.own_rows if node.evaluating else None,
        steps=options.steps,
        save_params=options.save_params is not None,
        init_params=options.init_params,
    )
    training, evaluation = agree(execution.plan, execution.channel, told)
    if training is not None:
        node.training = node.training.of(training)
    compare_rows(execution.plan, execution.channel, TRAINING, node.training.rows)
    if node.evaluating is not None:
        if evaluation is not None:
            node.evaluating = node.evaluating.of(evaluation)
        compare_rows(
            execution.plan, execution.channel, EVALUATION, node.evaluating.rows
        )


def _checked(execution: Execution, node: Node, step: Hook) -> Hook:
    """The step, each of whose ops is checked."""
    plan, me = execution.plan, execution.me
    check = NanCheck(execution.folder, me.program, plan.minimize)
    node.watch = check.watching(node.watch)

    def checked(node: Node) -> None:
        with check.step():
            step(node)

    return checked


def _train(
    execution: Execution,
    node: Node,
    metrics: Metrics,
    step: Hook,
    evaluate: Hook | None,
) -> None:
    per_epoch = node.training.order.steps_per_epoch
    total = execution.options.steps
    if total is None:
        total = execution.plan.epochs * per_epoch
    execution.tell("running")
    for number in range(1, total + 1):
        if execution.channel.aborted is not None:
            raise Aborted(execution.channel.aborted)
        if not execution.stopping.begin(number):
            break
        epoch, index = divmod(number - 1, per_epoch)
        node.enter_step(number, epoch + 1, index)
        execution.step = number
        begin = time.perf_counter()
        step(node)
        execution.timing.add(time.perf_counter() - begin, node.count)
        metrics.step(number, epoch + 1, node.count)
        if evaluate and (index + 1 == per_epoch or number == total):
            assert node.evaluating is not None
            execution.tell("evaluating")
            node.enter_evaluation(number)
            evaluate(node)
            metrics.evaluation(number, node.evaluating.all_rows)
            execution.tell("running")
