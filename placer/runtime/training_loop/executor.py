"""Runs the program of one node: preparation, steps, evaluations, saving, end."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from placer.checkpoint.finite import HINT, find_not_finite
from placer.checkpoint.manifest import Progress
from placer.plan.settings.data.sources import POSITION
from placer.readers import Digests
from placer.readers.streams.lane_rows import LaneRows
from placer.runtime.batches.opened_sources import EVALUATION, TRAINING
from placer.runtime.batches.same_rows import compare_rows
from placer.runtime.control.checkpoint_settings import check_folder
from placer.runtime.control.common_step import Action
from placer.runtime.control.divergence import LossWatch
from placer.runtime.control.events import (
    COMPARING,
    DONE,
    LOADING,
    SAVING,
    WRITING,
    NodeWarning,
)
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import FinalError, root_cause_reported
from placer.runtime.control.handshake import REPLAYED, agree
from placer.runtime.control.result import Result
from placer.runtime.control.table_counts import TableCounts, add_counts
from placer.runtime.metrics.history import HistoryWriter
from placer.runtime.metrics.rates_of_zero import find_rates_of_zero
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.nan_check import NanCheck
from placer.runtime.node.node import Node
from placer.runtime.node.program_file import Hook, Hooks
from placer.runtime.node.run_phases import compiling, finish, joined, settle
from placer.runtime.node.warm_up import run_warm_up
from placer.runtime.saving.beginning import begin_attempt
from placer.runtime.saving.checkpoints import Checkpoints
from placer.runtime.saving.gathered_parameters import gather_parameters
from placer.runtime.saving.parameter_files import save
from placer.runtime.saving.publications import Publications
from placer.runtime.saving.resumed_checkpoint import resume
from placer.runtime.saving.same_model import uncompared_rows
from placer.runtime.saving.start_facts import gather_facts
from placer.runtime.saving.start_parameters import (
    StartParameters,
    open_start,
    start_fingerprint,
)
from placer.runtime.saving.writing_thread import WritingThread
from placer.runtime.timeline.recording import Recording
from placer.runtime.training_loop.early_stopping import make_watches
from placer.runtime.training_loop.loop import Training
from placer.runtime.training_loop.make_sparse_tables import count_in_tables
from placer.runtime.training_loop.saves import Saves
from placer.runtime.training_loop.steps import steps_of
from placer.runtime.training_loop.stream import PassesOfStream
from placer.runtime.training_loop.training_node import make_node

WITHOUT_ROWS: Final = (
    "the saved parameters will not contain rows of sparse tables; 'checkpoint'"
    " (--checkpoint DIR) saves them"
)
"""The warning if a model has sparse tables and the run saves parameters but no checkpoint."""


def execute(
    execution: Execution, hooks: Hooks, recording: Recording | None
) -> Result | None:
    """Run a node's program from the first barrier to the last.

    Args:
        execution: the node's run.
        hooks: the hooks of the program.
        recording: records the node's part of the timeline; None without a timeline.

    Returns:
        The result of the run on the control node, None on other nodes.
    """
    if recording is not None:
        hooks = recording.traced_hooks(hooks)
    # A failure first aborts the channel, which wakes the threads, and then ends the threads.
    with ExitStack() as contexts, root_cause_reported(execution):
        training, progress = _start(execution, hooks, recording, contexts)
        with training.metrics, root_cause_reported(execution):
            training.run(progress)
        return _finish(training)


def _start(
    execution: Execution,
    hooks: Hooks,
    recording: Recording | None,
    contexts: ExitStack,
) -> tuple[Training, Progress | None]:
    """Prepare a run up to its first step. Return the training, and the position of the
    checkpoint that the run continues from."""
    plan, channel, options = execution.plan, execution.channel, execution.options
    check_folder(plan, options)
    watches = make_watches(execution)
    history = HistoryWriter(execution)
    contexts.callback(history.close)
    loss = LossWatch(
        plan, partial(execution.common_step.request, Action.STOP), execution.report
    )
    metrics = MetricsStream(plan, channel, history, loss)
    devices = contexts.enter_context(joined(execution))
    beginning = begin_attempt(execution, contexts)
    # Rows of `--init-params` must not be added to the rows of a checkpoint.
    start = None if beginning.resumes else open_start(execution)
    driver, tables, local, sparse = make_node(
        execution,
        start,
        metrics,
        devices,
        hooks,
        recording,
        contexts,
        # The run's own checkpoint has all parameters of the build.
        are_loaded=beginning.is_own,
    )
    node, batches = driver.node, driver.node.batch_calls
    execution.where = lambda: node.position.where
    execution.table_counts = partial(count_in_tables, sparse)
    execution.staleness = lambda: _as_event(driver.staleness)
    execution.geo_staleness = lambda: _as_event(driver.geo_staleness)
    execution.report_state(COMPARING)
    digests, run = _run_handshake(execution, driver, start)
    checkpoints, continued, thread = None, None, None
    if execution.checkpointing is not None or execution.publishing is not None:
        waits = bool(
            options.restarts
        )  # the next attempt of this process locks the folders
        thread = WritingThread(execution.me.name, waits=waits)
        contexts.enter_context(thread)
    if execution.keeps_digests:
        sources = batches.training, batches.evaluating
        facts = gather_facts(execution, devices, sources, digests)
        warns = execution.is_control and options.restarts and not plan.train.stream
        if warns and (text := uncompared_rows(facts.train)):
            execution.report(NodeWarning(text))
        if beginning.resumes:
            execution.report_state(LOADING)
            continued = resume(
                execution, beginning, tables, local, sparse, facts, batches.training
            )
            if continued is not None:
                batches.training = continued.go_on_with(execution, batches.training)
                watches.restore(continued.progress)
                if options.shrink and not beginning.is_own:
                    for table in sparse.values():
                        table.shrink(continued.progress.step, table.latest)
        if execution.checkpointing is not None:
            assert thread is not None
            thread.locks.enter_context(beginning.lock.pop_all())
            checkpoints = Checkpoints(
                execution,
                tables,
                local,
                sparse,
                facts,
                driver.order,
                history.sync,
                thread,
            )
            checkpoints.begin()
            if continued is not None:
                checkpoints.continue_from(continued, is_own=beginning.is_own)
            best = watches.best.found if watches.best is not None else None
            if execution.is_control and continued is not None and best is not None:
                checkpoints.take_over_best(best, continued.checkpoint.parent)
    progress = continued.progress if continued is not None else None
    publications = None
    if execution.publishing is not None:
        assert thread is not None
        publications = Publications(execution, tables, sparse, thread)
        shrinks = options.shrink and not beginning.is_own
        publications.begin(progress, is_changed=shrinks)
    if progress is not None:
        execution.table_counts = partial(count_in_tables, sparse, progress.step)
    driver.order.begin(
        run,
        progress.step if progress is not None else 0,
        is_own=beginning.is_own and progress is not None,
    )
    keeps_no_rows = options.save_params is not None and checkpoints is None
    if execution.is_control and keeps_no_rows and plan.sparse_tables:
        execution.report(NodeWarning(WITHOUT_ROWS))
    if execution.is_control:
        last = options.steps or 0 if plan.train.stream else batches.training.last_step
        for text in find_rates_of_zero(plan, last):
            execution.report(NodeWarning(text))
    history.open(batches.training.passes, progress)
    done = progress.step if progress is not None else 0
    shards = [r.shard for r in execution.me.step.reads if r.input != POSITION]
    batches.training.begin(done, shards, plan.settings.train.microbatches)
    step, evaluate = hooks.step, hooks.evaluate
    with compiling(execution, node.position):
        if options.debug_nans:  # ops run one by one, without compilation
            step = _with_nan_check(execution, node, step)
        else:
            run_warm_up(plan, driver, step, evaluate)
        if recording is not None:
            recording.begin()
    evaluating = batches.evaluating if evaluate is not None else None
    steps = steps_of(execution, batches.training, evaluating)
    stream = None
    if plan.train.stream is not None:
        trained = continued.trained if continued is not None else ""
        stream = PassesOfStream(
            execution,
            plan.train,
            batches.training,
            sparse.values(),
            progress,
            trained,
        )
        contexts.callback(stream.close)
        stream.begin()
    saves = Saves(
        execution,
        metrics,
        history,
        watches,
        checkpoints,
        publications,
        thread,
        loss,
        steps,
        stream,
    )
    training = Training(
        execution,
        driver,
        steps,
        metrics,
        saves,
        watches,
        recording,
        step,
        evaluate,
        stream,
    )
    return training, progress


def _run_handshake(
    execution: Execution, driver: NodeDriver, start: StartParameters | None
) -> tuple[tuple[Digests | None, Digests | None], str]:
    """Compare nodes and the rows that they read, and set the common number of rows. Returns
    the digests of the training and evaluation rows, if the run keeps digests, on the control
    node; and the id of the run."""
    plan, channel = execution.plan, execution.channel
    batches = driver.node.batch_calls
    training, evaluating = batches.training, batches.evaluating
    common = agree(
        execution,
        {
            "training rows": training.source_rows,
            "evaluation rows": evaluating.source_rows if evaluating else None,
            "--init-params": start_fingerprint(execution.options, start),
            "run": execution.run or secrets.token_hex(8)
            if execution.is_control
            else None,
            REPLAYED: driver.order.replayed,
        },
    )
    run = str(common["run"])
    keep, trained = execution.keeps_digests, None
    if plan.train.stream is None:  # otherwise each pass is compared when it is opened
        batches.training = training.with_rows(common["training rows"]).until(
            execution.options.steps, plan.settings.train.epochs
        )
        assert not isinstance(training.rows, LaneRows)
        trained = compare_rows(plan, channel, TRAINING, training.rows, keep=keep)
    if evaluating is None:
        return (trained, None), run
    batches.evaluating = evaluating.with_rows(common["evaluation rows"])
    assert not isinstance(evaluating.rows, LaneRows)
    evaluated = compare_rows(plan, channel, EVALUATION, evaluating.rows, keep=keep)
    return (trained, evaluated), run


def _finish(training: Training) -> Result | None:
    """Save the results and wait for all nodes; return the result on the control node."""
    execution, driver, saves = training.execution, training.driver, training.saves
    checkpoints, history = saves.checkpoints, saves.history
    plan, channel, options = execution.plan, execution.channel, execution.options
    driver.node.position.where = "after the last step"
    execution.common_step.end()
    if saves.thread is not None:
        execution.report_state(SAVING)
        saves.wait()
    saves.loss.check(execution.step, saves=options.save_params is not None)
    parameters = {}
    if options.save_params is not None:
        execution.report_state(SAVING)
        parameters = gather_parameters(plan, channel, driver.node.tables)
    recording = training.recording
    if recording is not None:
        recording.end()
    replicas = driver.replicas
    waited = checkpoints.seconds if checkpoints is not None else 0.0
    own = {
        "checkpoint_seconds": waited,
        "streams": channel.streams(),
        "staleness": _as_event(driver.staleness),
        "geo_staleness": _as_event(driver.geo_staleness),
        "divergence": replicas.divergence if replicas is not None else None,
        "tables": msgspec.to_builtins(execution.table_counts()),
    }
    reports = finish(execution, own)
    if not execution.is_control:
        settle(execution)
        execution.report_state(DONE)
        return None
    execution.report_state(SAVING if options.restarts else WRITING)
    not_finite = (
        find_not_finite(parameters) if plan.settings.train.nan == "stop" else ""
    )
    if options.save_params is not None and not not_finite:
        save(options.save_params, parameters)
    history.close()
    shares = recording.write() if recording is not None else {}
    if not_finite:
        raise FinalError(
            f"the parameters after step {execution.step} are not saved: {not_finite}",
            hint=HINT,
        )
    if checkpoints is not None and checkpoints.problem:
        file = options.save_params
        saved = f"; the parameters are in {file}" if file is not None else ""
        raise FinalError(
            f"{checkpoints.problem}{saved}",
            hint="the run has ended; its last complete checkpoint is "
            f"{checkpoints.saved or 'none'}",
        )
    publications = saves.publications
    if publications is not None and publications.problem:
        raise FinalError(
            publications.problem,
            hint="the run has ended; publish its last checkpoint with --resume and --publish",
        )
    tables = {
        node.name: msgspec.convert(report["tables"], dict[str, TableCounts])
        for node, report in zip(plan.nodes, reports, strict=True)
    }
    total = add_counts(tables.values())

    def of_nodes(read: Callable[[TableCounts], int]) -> dict[str, dict[str, int]]:
        return {
            name: {n: read(each[name]) for n, each in tables.items() if name in each}
            for name in total
        }

    result = Result(
        steps=history.steps,
        metrics=history.metrics,
        eval=history.eval,
        samples_per_second=execution.timing.rate,
        bytes_sent={
            node.name: report["bytes_sent"]
            for node, report in zip(plan.nodes, reports, strict=True)
        },
        checkpoint_seconds=max(each["checkpoint_seconds"] for each in reports),
        streams={
            node.name: report["streams"]
            for node, report in zip(plan.nodes, reports, strict=True)
        },
        staleness=_add_staleness(report["staleness"] for report in reports),
        staleness_bound=plan.staleness_bound,
        geo_staleness=_add_staleness(report["geo_staleness"] for report in reports),
        divergence=max(
            (each["divergence"] for each in reports if each["divergence"] is not None),
            default=None,
        ),
        untrained_rows=history.untrained_rows,
        shares=shares,
        tables={name: counts.as_dict() for name, counts in total.items()},
        table_rows=of_nodes(lambda counts: counts.rows),
        table_counted=of_nodes(lambda counts: counts.counted),
        table_bytes=of_nodes(lambda counts: counts.nbytes),
        best=str(checkpoints.best) if checkpoints and checkpoints.best else None,
        published=publications.newest_path if publications is not None else None,
        passes=training.stream.begun if training.stream is not None else None,
    )
    execution.report(result)
    settle(execution)
    execution.report_state(DONE)
    return result


def _as_event(staleness: Mapping[int, int]) -> dict[str, int]:
    return {str(key): count for key, count in staleness.items()}


def _add_staleness(reports: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[int] = Counter()
    for report in reports:
        total.update({int(key): count for key, count in report.items()})
    return {str(key): total[key] for key in sorted(total)}


def _with_nan_check(execution: Execution, node: Node, step: Hook) -> Hook:
    plan, me = execution.plan, execution.me
    check = NanCheck(execution.folder, me.program, plan.settings.train.minimize)
    calls = node.batch_calls
    calls.on_record = check.checking_loss(calls.on_record)

    def checked_step(node: Node) -> None:
        with check.checked_step():
            step(node)

    return checked_step
