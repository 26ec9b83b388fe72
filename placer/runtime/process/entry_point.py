"""Runs one node as a process, or several nodes as its threads.

The process ends together with the other processes of the run:

- The launcher writes orders to `order_fd`. After an order to stop, all nodes stop after the same
  step and save (see `common_step`). The end of the file means that the launcher has ended.
- The process reports signals to its launcher. Without a launcher, it decides how to react
  (see `node_signals`).
- If the launcher has ended, the process tells its peers and exits immediately.
- If the run has failed on another node, the process exits within `EXIT_TIMEOUT`, even if
  its compute thread is stuck and cannot notice the failure (see `attempts`).
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from placer.channel.interface import Aborted
from placer.channel.keys import find_key
from placer.errors import PlacerError
from placer.place.node_kinds import SERVER, NodeId
from placer.plan.plan import BASE_PORT, NodePlan, Plan, read_plan
from placer.plan.table_text import table_lines
from placer.runtime.callbacks.event_queue import EventQueue, write_all
from placer.runtime.callbacks.event_relay import RelayedReport
from placer.runtime.callbacks.printed_output import report_output
from placer.runtime.control.checkpoint_settings import checkpoint_settings
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import Event, Output, Report, show_output
from placer.runtime.control.failure import failure_event
from placer.runtime.control.launcher_orders import OrderReader
from placer.runtime.control.option_checks import check_effects, check_encryption
from placer.runtime.control.options import Options
from placer.runtime.control.pace import ControlPace
from placer.runtime.control.result import Outcome
from placer.runtime.exchange.devices import configure_jax
from placer.runtime.node.program_file import Hook
from placer.runtime.prediction.request import PredictionRequest
from placer.runtime.process.attempts import EXIT_TIMEOUT, NodeRun
from placer.runtime.process.cores import take_core
from placer.runtime.process.gpus import take_gpus
from placer.runtime.process.guard_notes import GuardNotes
from placer.runtime.saving.beginning import last_attempt
from placer.runtime.signals.node_signals import NodeSignals
from placer.system.caches.compilation import keep_compiled
from placer.system.caches.folder import trim_caches
from placer.system.cores import fix_threads
from placer.system.memory.allocator import keep_memory
from placer.system.reentry import node_in_process


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
    run_id: str = "",
    attempt: int = 0,
    guard: GuardNotes | None = None,
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
        order_fd: a file descriptor to read the orders of the launcher from (see
            `placer.runtime.control.launcher_orders`). A stop is without a last evaluation, and
            only the control node can obey it. The end of the file means that the launcher
            has ended. The caller closes it.
        paced: whether the steps wait for callbacks in the launcher.
        alone: whether no launcher reads the events. The node then decides how to react to
            signals, and continues if events cannot be written.
        relay: whether to send the events of all nodes to the `report_fd` of the control
            node (`placer.runtime.callbacks.event_relay`).
        bind: the address `HOST:PORT` to listen on, if it differs from the address in
            `endpoints` that other nodes use.
        run_id: the id that all attempts of a run with `--restarts` have in common. The
            launcher chooses it.
        attempt: the last attempt of a run that has trained, if this process takes the place
            of another one; otherwise 0.
        guard: tells the guard of this process how it goes on (`placer.launcher.guard`).
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
    if options.restarts and not launched and guard is None:
        raise PlacerError(
            "'restarts' (--restarts) has no effect: nothing starts this node again",
            hint="use `placer launch` or the command `placer run`, or remove the option",
        )
    if launched:  # otherwise an engine may already have assigned cores
        take_core(plan, node, addresses)
    emulate = options.emulate or plan.settings.emulate
    if not emulate:
        take_gpus(plan, node, addresses, launched=launched)
    process: NodeRun

    def lose_launcher() -> None:
        process.exit_without_launcher()

    pipe = None
    if report_fd is not None:
        write = partial(write_all, report_fd)
        broken = _warn_of_lost_events if alone else lose_launcher
        pipe = EventQueue(write, lambda events: broken())
    report: Report = pipe or show_output
    is_control, relayed = nodes[0].name == plan.control, None
    if relay and not is_control:
        report = relayed = RelayedReport(report)
    if signals is not None and launched:
        signals.report_to(node, report)
    elif signals is not None:
        report = partial(_note_and_report, signals.interruption.note, report)
    if guard is not None:
        report = partial(_note_and_report, guard.note, report)
    process = NodeRun(
        plan,
        folder,
        node,
        nodes,
        options,
        addresses,
        key,
        bind,
        paced,
        relay,
        run_id,
        report,
        pipe,
        relayed,
    )
    if attempt:
        process.number, process.continues = attempt, True
    if signals is not None:
        process.on_end = signals.unwind
    if signals is not None and not launched:
        process.on_attempt.append(partial(signals.obey, reports=pipe is not None))
    if guard is not None:
        process.on_attempt.append(guard.begin)
    try:
        settings = checkpoint_settings(plan, folder, options)
        if guard is not None and settings is not None and is_control:
            # If all nodes are started again, no peer knows the number of the attempt.
            counted = last_attempt(settings.folder, run_id) + 1
            process.number = max(process.number, counted)
        if order_fd is not None:
            _start_order_thread(order_fd, process)
        _show_tables(plan, nodes)
        with ExitStack() as contexts:
            contexts.enter_context(node_in_process(node))
            if pipe is not None:
                printed = report_output(lambda line: report(Output(node, line)))
                contexts.enter_context(printed)
            trim_caches()
            if any(each.uses_jax for each in nodes):
                configure_jax(nodes, emulate, alone=True)
                keep_compiled()
            result = process.run(prediction)
        if prediction is None and pipe is not None:
            # Wait without a limit: the launcher may be busy with callbacks.
            pipe.close(None)
        return result
    except BaseException as error:
        if not process.has_begun:
            report(failure_event(node, error, None))
        raise
    finally:
        if signals is not None:
            signals.close()
        # Do not exit now: the process belongs to the caller.
        if pipe is not None:
            pipe.close(EXIT_TIMEOUT)


def _show_tables(plan: Plan, nodes: Sequence[NodePlan]) -> None:
    """Print the tables of servers to standard error. The launcher writes it to the log."""
    for node in nodes:
        if NodeId(node.name).kind == SERVER:
            print("\n".join(table_lines(plan, node)), file=sys.stderr, flush=True)


def _note_and_report(note: Report, report: Report, event: Event) -> None:
    note(event)
    report(event)


def _warn_of_lost_events() -> None:
    with suppress(OSError):  # standard error may also have no reader
        print("warning: no more events can be written", file=sys.stderr, flush=True)


def _start_order_thread(fd: int, process: NodeRun) -> None:
    """Start a thread that executes orders from `fd`. At its end, it ends the process."""

    def read() -> None:
        reader = OrderReader()
        while data := os.read(fd, 4096):
            orders = reader.read(data)
            for node, address in orders.addresses.items():
                process.move(node, address, replaced=node in orders.replaced)
            execution = process.execution
            if execution is None:  # between two attempts; the launcher orders again
                continue
            if isinstance(execution.pace, ControlPace):
                execution.pace.steps_called(orders.steps)
            if orders.stops:
                with suppress(Aborted):  # the attempt has failed
                    execution.common_step.request(Action.STOP)
        process.exit_without_launcher()

    threading.Thread(target=read, name="placer orders", daemon=True).start()


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
