"""Runs one node as a process, or several nodes as its threads.

The process ends together with the other processes of the run:

- The launcher writes orders to `order_fd`. After `STOP_ORDER`, all nodes stop after the same
  step and save (see `common_step`). The end of the file means that the launcher has ended.
- The process reports signals to its launcher. Without a launcher, it decides how to react
  (see `node_signals`).
- If the launcher has ended, the process tells its peers and exits immediately.
- If the run has failed on another node, the process exits within `EXIT_TIMEOUT`, even if
  its compute thread is stuck and cannot notice the failure.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from placer.channel.interface import Aborted, Cause
from placer.channel.keys import find_key
from placer.channel.session import Session
from placer.channel.thread_channel import thread_channels
from placer.errors import PlacerError
from placer.place.node_kinds import SERVER, NodeId
from placer.plan.plan import BASE_PORT, NodePlan, Plan, neighbours, read_plan
from placer.plan.table_text import table_lines
from placer.runtime.callbacks.event_queue import EventQueue, write_all
from placer.runtime.callbacks.event_relay import EventRelay, RelayedReport
from placer.runtime.callbacks.printed_output import report_output
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import Event, Output, Report, show_output
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import failure_event
from placer.runtime.control.launcher_orders import STEP_CALLED, STOP_ORDER
from placer.runtime.control.option_checks import check_effects, check_encryption
from placer.runtime.control.options import Options
from placer.runtime.control.pace import ControlPace
from placer.runtime.control.result import Outcome
from placer.runtime.control.shared_rows import SharedRows
from placer.runtime.control.wait_samples import SAMPLE_INTERVAL
from placer.runtime.exchange.devices import configure_jax
from placer.runtime.node.program_file import Hook
from placer.runtime.prediction.request import PredictionRequest
from placer.runtime.process.cores import take_core
from placer.runtime.process.gpus import take_gpus
from placer.runtime.process.nodes import run_nodes
from placer.runtime.process.peer_policy import watch_peers
from placer.runtime.signals.interruption import Interruption
from placer.runtime.signals.node_signals import NodeSignals
from placer.system.caches.compilation import keep_compiled
from placer.system.caches.folder import trim_caches
from placer.system.cores import fix_threads
from placer.system.memory.allocator import keep_memory
from placer.system.owned_threads import END_LIMIT
from placer.system.reentry import node_in_process

STATE_INTERVAL = 0.5
"""Seconds between two reports of a node's state."""
EXIT_TIMEOUT = 10.0
"""Seconds until a process is forced to exit after the run has failed on another node."""


def default_endpoints(plan: Plan, base_port: int | None = None) -> dict[str, str]:
    """Return the default address of each process: loopback and consecutive ports.

    Raises PlacerError if the ports after `base_port` are not enough.
    """
    first = BASE_PORT if base_port is None else base_port
    last = first + len(plan.processes) - 1
    if last > 65535:
        raise PlacerError(
            f"{len(plan.processes)} nodes from base port {first} need port {last}",
            hint="use a smaller base port; the highest port is 65535",
        )
    return {name: f"127.0.0.1:{first + i}" for i, name in enumerate(plan.processes)}


def run(
    build: str | Path,
    node: str,
    *,
    endpoints: Mapping[str, str] | None = None,
    options: Options | None = None,
    report_fd: int | None = None,
    order_fd: int | None = None,
    paced: bool = False,
    alone: bool = False,
    relay: bool = False,
    bind: str | None = None,
    prediction: PredictionRequest | None = None,
    signals: NodeSignals | None = None,
) -> Outcome | None:
    """Run one node of a build in this process until the run ends.

    A process with several nodes runs them as threads.

    Args:
        build: the build folder.
        node: the name of the process, such as `worker:0`. It is also the name of its node,
            or the prefix of the nodes `worker:0.0`, `worker:0.1` and so on.
        endpoints: the address `HOST:PORT` of each process. Processes that are not listed
            use consecutive ports on loopback, starting at `options.base_port`.
        report_fd: a file descriptor to write events to, one JSON object per line. Without
            it, warnings go to standard error.
        order_fd: a file descriptor to read the orders of the launcher from, for the control
            node. `STOP_ORDER` stops all nodes after the same step, without a last
            evaluation. `STEP_CALLED` means that the callbacks have finished a step. The end
            of the file means that the launcher has ended. The caller closes it.
        paced: whether the steps wait for callbacks in the launcher.
        alone: whether no launcher reads the events. The node then decides how to react to
            signals, and continues if events cannot be written.
        relay: whether to send the events of all nodes to the `report_fd` of the control
            node (`placer.runtime.callbacks.event_relay`).
        bind: the address `HOST:PORT` to listen on, if it differs from the address in
            `endpoints` that other nodes use.
        prediction: predict these rows instead of training.
        signals: handles the signals to this process; by default the caller handles them.

    Returns:
        The result of the run on the control node, None on other nodes.

    Raises:
        BuildError: if the build has changed since it was compiled.
        PlacerError: if the key cannot be used.
        RunError: if this node fails.
        Aborted: if another node fails, with the root cause.

    Example:
        placer.run("build", "worker:0", options=placer.Options(steps=100))
    """
    folder = Path(build)
    plan = read_plan(folder)
    nodes = plan.process(node)
    fix_threads()
    keep_memory(sum(each.table_bytes + each.activation_bytes for each in nodes))
    options = options or Options()
    check_effects(plan, options)
    key = find_key(options.key)
    addresses = default_endpoints(plan, options.base_port)
    for name, address in (endpoints or {}).items():
        plan.process(name)
        addresses[name] = address
    check_encryption(options, addresses)
    launched = report_fd is not None and not alone
    if launched:  # otherwise an engine may already have assigned cores
        take_core(plan, node, addresses)
    emulate = options.emulate or plan.settings.emulate
    if not emulate:
        take_gpus(plan, node, addresses, launched=launched)
    channel: Session | None = None

    def exit_without_launcher() -> None:
        if channel is not None:
            channel.abort(Cause(node, "", "its launcher has ended"))
        os._exit(1)

    def exit_after_failure() -> None:
        # The compute thread is stuck outside the channel, such as in the code of a source.
        # In the channel it would have raised `Aborted`.
        if channel is not None and channel.aborted is not None:
            error = Aborted(channel.aborted)
            if pipe is not None:
                pipe.close(EXIT_TIMEOUT, failure_event(node, error, channel))
            else:
                print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    reported: list[BaseException] = []

    def report_failure(error: BaseException) -> None:
        if error not in reported:
            reported.append(error)
            report(failure_event(node, error, channel))

    pipe = None
    if report_fd is not None:
        write = partial(write_all, report_fd)
        broken = _warn_of_lost_events if alone else exit_without_launcher
        pipe = EventQueue(write, lambda events: broken())
    report: Report = pipe or show_output
    is_control, relayed, relaying = nodes[0].name == plan.control, None, None
    if relay and not is_control:
        report = relayed = RelayedReport(report)
    if signals is not None and launched:
        signals.report_to(node, report)
    elif signals is not None:
        report = partial(_note_and_report, signals.interruption, report)
    forced_exit = threading.Timer(EXIT_TIMEOUT, exit_after_failure)
    forced_exit.daemon = True
    starting = threading.Lock()

    def end_in_time() -> None:
        # Several threads may call this; start the timer once.
        with starting:
            if forced_exit.ident is None:
                forced_exit.start()

    try:
        channel = Session(
            node,
            addresses,
            "placer" if key is None else key.derive("job").hex(),
            build=plan.digest,
            key=key,
            encrypt=not options.insecure_network,
            bind=bind,
            transport=options.transport,
            peers=neighbours(plan, node),
            nodes=[each.name for each in plan.nodes],
            deadline=options.deadline,
            join_timeout=options.join_timeout,
            lost_after=options.lost_after,
        )
        channel.on_abort = lambda cause: end_in_time()
        channels = thread_channels(channel)
        rows = SharedRows()
        executions = [
            Execution(
                plan,
                folder,
                each,
                channels[each.name],
                options,
                report,
                shared_rows=rows,
                paced=paced,
            )
            for each in nodes
        ]
        execution = executions[0]
        execution.on_settled = forced_exit.cancel
        if relay and is_control:
            relaying = EventRelay(execution.channel, report)
            execution.on_joined = relaying.begin
        if relayed is not None:
            execution.on_joined = partial(
                relayed.begin, execution.channel, plan.control
            )
            execution.on_last_barrier = relayed.end
        watch_peers(executions, channel)
        if order_fd is not None:
            _start_order_thread(order_fd, execution, exit_without_launcher)
        if signals is not None and not launched:
            signals.obey(execution, reports=pipe is not None)
        _show_tables(plan, nodes)
        with ExitStack() as contexts:
            contexts.enter_context(node_in_process(node))
            if pipe is not None:
                printed = report_output(lambda line: report(Output(node, line)))
                contexts.enter_context(printed)
                contexts.enter_context(_states_reported(executions))
            trim_caches()
            if any(each.uses_jax for each in nodes):
                configure_jax(nodes, emulate, alone=True)
                keep_compiled()
            result = run_nodes(executions, prediction, report_failure)
        if prediction is not None:
            return result
        if relaying is not None:
            relaying.close()
        if pipe is not None:
            # Wait without a limit: the launcher may be busy with callbacks.
            pipe.close(None)
        return result
    except BaseException as error:
        report_failure(error)
        raise
    finally:
        if signals is not None:
            signals.unwind()
        if channel is not None:
            channel.close()
        if signals is not None:
            signals.close()
        # Do not exit now: the process belongs to the caller. The channel's thread, which
        # starts the timer, has already ended. Cancelling an unstarted timer is harmless.
        forced_exit.cancel()
        if forced_exit.ident is not None:
            forced_exit.join(END_LIMIT)
        if relaying is not None:
            relaying.drop()
        if relayed is not None:
            relayed.close()
        if pipe is not None:
            pipe.close(EXIT_TIMEOUT)


def _show_tables(plan: Plan, nodes: Sequence[NodePlan]) -> None:
    """Print the tables of servers to standard error. The launcher writes it to the log."""
    for node in nodes:
        if NodeId(node.name).kind == SERVER:
            print("\n".join(table_lines(plan, node)), file=sys.stderr, flush=True)


def _note_and_report(interruption: Interruption, report: Report, event: Event) -> None:
    interruption.note(event)
    report(event)


def _warn_of_lost_events() -> None:
    with suppress(OSError):  # standard error may also have no reader
        print("warning: no more events can be written", file=sys.stderr, flush=True)


def _start_order_thread(
    fd: int, execution: Execution, on_end: Callable[[], object]
) -> None:
    """Start a thread that executes orders from `fd`, and calls `on_end` at its end."""
    pace = execution.pace

    def read() -> None:
        while orders := os.read(fd, 4096):
            if isinstance(pace, ControlPace):
                pace.steps_called(orders.count(STEP_CALLED))
            if STOP_ORDER in orders:
                execution.common_step.request(Action.STOP)
        on_end()

    threading.Thread(target=read, name="placer orders", daemon=True).start()


@contextmanager
def _states_reported(executions: Sequence[Execution]) -> Iterator[None]:
    end = threading.Event()

    def report() -> None:
        due = time.monotonic() + STATE_INTERVAL
        while not end.wait(SAMPLE_INTERVAL):
            now = time.monotonic()
            for execution in executions:
                execution.sample_waits()
                if now >= due:
                    execution.report_state()
            if now >= due:
                due = now + STATE_INTERVAL

    thread = threading.Thread(target=report, name="placer report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def main(file: str, *hooks: Hook) -> None:
    """Run the node of a program file, with the options of `placer run`.

    A node program calls this when it is run as a script. The function runs the command
    `placer run`, which checks the hash of the program and loads its hooks. If several
    nodes or threads share the program, it exits with a message that shows how to run one.

    Args:
        file: the path of the program, `__file__`.
        hooks: the hooks of the program, such as `step`; not used.

    Example:
        if __name__ == "__main__":
            main(__file__, step, evaluate)
    """
    program = Path(file).resolve()
    folder, name = str(program.parent.parent), program.parent.name
    if "-" not in name:  # the folder of a kind
        sys.exit(
            "several nodes share this program: run one of them with `placer run"
            f" {folder} --node {name}:0`"
        )
    node = NodeId.of_stem(name)
    if node.process != node:
        sys.exit(
            f"{node} is a thread: run its process with `placer run {folder} --node"
            f" {node.process}`"
        )
    sys.argv = ["placer", "run", folder, "--node", node, *sys.argv[1:]]
    # Like `python -m`, because the runtime must not import the command line.
    runpy.run_module("placer.command", run_name="__main__")
