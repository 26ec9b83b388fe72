"""Runs one node's program: start, steps, evaluations, saving, end."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placer.errors import RunError
from placer.plan import Data, Plan, read_sources, sha256
from placer.plan import Node as NodePlan
from placer.readers import Column, Order, Rows, open_source
from placer.runtime import parameters as files
from placer.runtime.channel.protocol import Aborted, Channel, Key
from placer.runtime.events import Report, finite
from placer.runtime.exchange import Exchange
from placer.runtime.node import Batches, Node
from placer.runtime.schedules import schedule
from placer.runtime.service import DONE, READY, SAVE, Line, Metrics, agree, barrier
from placer.runtime.table import Block, Table


@dataclass(frozen=True, slots=True)
class Options:
    """How a run goes, beside what the build says.

    `steps` runs exactly that many whatever `epochs` says; the files are written or
    read by the nodes themselves; `join_timeout` and `deadline` are seconds.
    """

    steps: int | None = None
    history: Path | None = None
    save_params: Path | None = None
    init_params: Path | None = None
    join_timeout: float = 600.0
    deadline: float = 600.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run.

    `metrics` is the mean over the rows of the last epoch, or the part of it that ran;
    `eval` the last evaluation; `samples_per_second` counts global rows without the
    first step; `bytes_sent` are payload bytes by node.
    """

    steps: int
    metrics: dict[str, float]
    eval: dict[str, float]
    samples_per_second: float
    bytes_sent: dict[str, int]


Hook = Callable[[Node], None]


@dataclass(slots=True)
class Execution:
    """One node's run in progress; `state` is what its launcher is shown."""

    plan: Plan
    folder: Path
    me: NodePlan
    channel: Channel
    options: Options
    report: Report
    state: str = "joining"
    step: int = 0
    node: Node | None = None
    timing: _Timing = field(default_factory=lambda: _Timing())
    telling: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, state: str | None = None) -> None:
        """Report a new state, or the present one once more. From any thread."""
        with self.telling:
            if state is not None:
                self.state = state
            self.report(
                {
                    "event": "state",
                    "node": self.me.name,
                    "state": self.state,
                    "step": self.step,
                    "waiting": list(self.channel.waiting()),
                    "bytes_sent": self.channel.bytes_sent,
                }
            )

    @property
    def where(self) -> str:
        return self.node.where if self.node is not None else ""


def execute(execution: Execution, step: Hook, evaluate: Hook | None) -> Result | None:
    """Run a node's program from the first barrier to the last.

    The control node returns the Result, the others None.
    """
    plan = execution.plan
    with _device(execution.me), _precision(plan), _Lines(execution) as lines:
        node = execution.node = _prepare(execution)
        execution.tell("joining")
        execution.channel.join()
        _agree(execution, node)
        metrics = Metrics(plan, execution.channel, lines)
        _train(execution, node, metrics, step, evaluate)
        metrics.close()  # after a failure the channel's abort ends it
        node.where = "after the last step"
        if execution.options.save_params is not None:
            execution.tell("saving")
            _save(execution, node, execution.options.save_params)
        told = {"bytes_sent": execution.channel.bytes_sent}
        heard = barrier(plan, execution.channel, told, DONE)
        execution.tell("done")
        if execution.channel.node != plan.control:
            return None
        return lines.result(
            {n.name: t["bytes_sent"] for n, t in zip(plan.nodes, heard, strict=True)}
        )


@contextlib.contextmanager
def _device(me: NodePlan) -> Iterator[None]:
    """Compute on the device that the plan says; RunError where it is not there."""
    import jax

    if me.device is None:
        yield
        return
    kind, _, number = me.device.partition(":")
    try:
        devices = jax.devices(kind)
    except RuntimeError:
        devices = []
    if int(number) >= len(devices):
        found = dict.fromkeys(device.platform for device in jax.devices())
        raise RunError(
            f"there is no {me.device} here, only {', '.join(found)}",
            hint="run the node on a machine that has it, or place its ops elsewhere",
        )
    with jax.default_device(devices[int(number)]):
        yield


@contextlib.contextmanager
def _precision(plan: Plan) -> Iterator[None]:
    if plan.precision == "float64":
        import jax

        with jax.enable_x64(True):
            yield
    else:
        yield


def _prepare(execution: Execution) -> Node:
    plan, me = execution.plan, execution.me
    edges = {e.id: e for e in (*plan.step_edges, *plan.evaluation_edges)}
    tables = _tables(plan, me, execution.options)
    rates = {t.name: schedule(t.learning_rate) for t in me.tables}
    source = read_sources(execution.folder)
    training = _batches(plan, me, plan.train, me.step.reads, execution.folder, source)
    evaluating = None
    if plan.evaluation is not None:
        reads = me.evaluation.reads if me.evaluation else ()
        evaluating = _batches(
            plan, me, plan.evaluation, reads, execution.folder, source
        )
    return Node(
        me.name,
        Exchange(me.name, execution.channel, edges),
        tables,
        rates,
        training,
        evaluating,
        (me.step, me.evaluation),
    )


def _tables(plan: Plan, me: NodePlan, options: Options) -> dict[str, Table]:
    wholes = {parameter.name: parameter for parameter in plan.parameters}
    given = None
    if options.init_params is not None and me.tables:
        given = files.load(options.init_params)
        files.check(given, {p.name: (p.shape, p.dtype) for p in plan.parameters})
    tables: dict[str, Table] = {}
    for held in me.tables:
        blocks = [
            Block(
                b.parameter, b.name, b.shape, b.start, b.stop, wholes[b.parameter].shape
            )
            for b in held.blocks
        ]
        table = Table(
            held.name,
            blocks,
            held.rule or "sgd",
            held.hyper,
            dtype=wholes[blocks[0].parameter].dtype,
            seed=plan.seed,
            inits={b.parameter: wholes[b.parameter].init for b in blocks},
        )
        if given is not None:
            table.load(
                [
                    given[b.parameter].reshape(-1)[b.start : b.stop].reshape(b.shape)
                    for b in blocks
                ]
            )
        if held.rule is not None:
            table.warm()
        tables[held.name] = table
    return tables


def _batches(
    plan: Plan, me: NodePlan, data: Data, reads: Any, folder: Path, origin: Path
) -> Batches:
    """The source as this node reads it; its number of rows is agreed on later."""
    rows: Rows | None = None
    if reads:
        inputs = {read.input for read in reads}
        columns = [
            Column(c.name, c.dtype, c.shape) for c in plan.columns if c.name in inputs
        ]
        mapping = {k: v for k, v in (data.columns or {}).items() if k in inputs}
        where = folder if data.source.startswith("python:") else origin
        rows = open_source(
            data.source,
            columns,
            mapping=mapping or None,
            split=data.split,
            folder=where,
        )
    count = rows.rows if rows is not None else data.batch
    return Batches(
        Order(count, data.batch, data.shuffle, data.seed, data.remainder), rows
    )


def _agree(execution: Execution, node: Node) -> None:
    """Every node learns how many rows there are, so that all count the same steps; and
    that all were asked to run the same way."""
    plan, options = execution.plan, execution.options
    sides = {"training rows": node.training, "evaluation rows": node.evaluating}
    told: dict[str, Any] = {
        what: batches.rows.rows if batches is not None and batches.rows else None
        for what, batches in sides.items()
    }
    told["build"] = plan.digest
    told["--steps"] = options.steps or 0
    told["--save-params"] = options.save_params is not None
    told["--init-params"] = _fingerprint(options.init_params)

    def check(heard: list[Any]) -> None:
        for what in told:
            agree(plan, heard, what)

    heard = barrier(plan, execution.channel, told, READY, check)
    for what, batches in sides.items():
        rows = agree(plan, heard, what)
        if batches is None or rows is None:
            continue
        order = batches.order
        agreed = Order(rows, order.batch, order.shuffle, order.seed, order.remainder)
        if what == "training rows":
            node.training = Batches(agreed, batches.rows)
        else:
            node.evaluating = Batches(agreed, batches.rows)


def _fingerprint(file: Path | None) -> str:
    """What nodes compare to know that they begin with the same parameters."""
    return "" if file is None else sha256(file.read_bytes())[:16]


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
    execution.tell("compiling")
    for number in range(1, total + 1):
        if execution.channel.aborted is not None:
            raise Aborted(execution.channel.aborted)
        epoch, index = divmod(number - 1, per_epoch)
        node.enter_step(number, epoch + 1, index)
        execution.step = number
        begin = time.perf_counter()
        step(node)
        execution.timing.add(time.perf_counter() - begin, node.count)
        metrics.step(number, epoch + 1, node.count, node.records)
        if number == 1:
            execution.tell("running")
        if evaluate and (index + 1 == per_epoch or number == total):
            execution.tell("evaluating")
            node.enter_evaluation(number)
            evaluate(node)
            metrics.evaluation(number, node.evaluated_rows, node.records)
            execution.tell("running")


@dataclass(slots=True)
class _Timing:
    """Seconds and rows of the steps after the first, which compiles."""

    steps: int = 0
    seconds: float = 0.0
    rows: int = 0

    def add(self, seconds: float, rows: int) -> None:
        self.steps += 1
        if self.steps > 1:
            self.seconds += seconds
            self.rows += rows

    @property
    def rate(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


class _Lines:
    """Takes the lines of metrics on the control node: reports and writes them."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._epoch = 0
        self._rows = 0
        self._sums: dict[str, float] = {}
        self._eval: dict[str, float] = {}
        self._steps = 0
        self._file: Any = None
        control = execution.channel.node == execution.plan.control
        if control and execution.options.history is not None:
            try:
                self._file = execution.options.history.open("w", encoding="utf-8")
            except OSError as error:
                raise _unwritten(execution.options.history, error) from error

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:  # what it still held; what failed first stands
            if failed is None:
                raise _unwritten(Path(self._file.name), error) from error

    def __call__(self, line: Line) -> None:
        if line.epoch != self._epoch:
            self._epoch, self._rows, self._sums = line.epoch, 0, {}
        self._rows += line.rows
        self._steps = line.step
        for name, value in line.metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * line.rows
        said: dict[str, Any] = {
            "step": line.step,
            "epoch": line.epoch,
            "metrics": line.metrics,
        }
        if line.eval is not None:
            self._eval = line.eval
            said["eval"] = line.eval
        if self._file is not None:
            try:
                plain = {
                    k: finite(v) if isinstance(v, dict) else v for k, v in said.items()
                }
                self._file.write(json.dumps(plain, allow_nan=False) + "\n")
                self._file.flush()
            except OSError as error:
                raise _unwritten(Path(self._file.name), error) from error
        rate = self._execution.timing.rate
        self._execution.report({"event": "step", **said, "samples_per_second": rate})

    def result(self, bytes_sent: dict[str, int]) -> Result:
        result = Result(
            steps=self._steps,
            metrics={k: v / self._rows for k, v in self._sums.items()},
            eval=self._eval,
            samples_per_second=self._execution.timing.rate,
            bytes_sent=bytes_sent,
        )
        self._execution.report(
            {
                "event": "result",
                "steps": result.steps,
                "metrics": result.metrics,
                "eval": result.eval,
                "samples_per_second": result.samples_per_second,
                "bytes_sent": result.bytes_sent,
            }
        )
        return result


def _unwritten(history: Path, error: OSError) -> RunError:
    return RunError(
        f"the history cannot be written to {history}: {error.strerror}",
        hint="name a file in a folder that exists and has room",
    )


def _save(execution: Execution, node: Node, path: Path) -> None:
    """The control node gathers all blocks and writes whole parameters."""
    plan, channel = execution.plan, execution.channel
    whole: dict[str, np.ndarray] = {}
    for i, parameter in enumerate(plan.parameters):
        blocks = []
        for j, (holder, table, index) in enumerate(parameter.holders):
            key = Key(SAVE, i, j)
            if holder == channel.node:
                block = node.tables[table].values()[index]
                if channel.node != plan.control:
                    channel.send(plan.control, key, [block])
                blocks.append(block)
            elif channel.node == plan.control:
                blocks += channel.receive(holder, key)
        if channel.node == plan.control:
            flat = np.concatenate([block.reshape(-1) for block in blocks])
            whole[parameter.name] = flat.reshape(parameter.shape)
    if channel.node == plan.control:
        files.save(path, whole)
