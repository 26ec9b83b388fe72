"""The command `placer run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from placer.command.console import echo
from placer.command.option_groups import GroupedCommand, grouped_option
from placer.command.options import (
    data_option,
    endpoints_option,
    given_build_argument,
    hosts_option,
    run_options,
)
from placer.errors import PlacerError
from placer.system.files.nearest_path import path_hint

AUTO = "auto"
"""Value of `--node` that lets the process find the name of its node."""


@click.command("run", cls=GroupedCommand, short_help="Run one node of a build.")
@given_build_argument
@grouped_option(
    "Run",
    "--node",
    required=True,
    metavar="NAME:ID",
    help="The node to run, such as worker:0. `auto` reads PLACER_NODE, or PLACER_KIND and "
    "PLACER_INDEX, or the variables of Slurm.",
)
@endpoints_option
@hosts_option
@grouped_option(
    "Machines and connections",
    "--bind",
    metavar="HOST:PORT",
    help="The address to listen on, if it differs from the address to which other nodes connect.",
)
@data_option
@grouped_option(
    "Run",
    "--events",
    metavar="FILE",
    help="Write the events of the node to FILE, as JSON lines. With -, events go to standard "
    "output, and the node's own output goes to standard error.",
)
@run_options
@click.option("--report-fd", type=click.IntRange(min=0), hidden=True)
@click.option("--order-fd", type=click.IntRange(min=0), hidden=True)
@click.option("--paced", is_flag=True, hidden=True)
@click.option("--prediction", hidden=True)
@click.option("--run-id", default="", hidden=True)
@click.option("--attempt", type=click.IntRange(min=0), default=0, hidden=True)
@click.option("--guard-fd", type=click.IntRange(min=0), hidden=True)
def run_command(
    build: Path,
    node: str,
    endpoints: dict[str, str] | None,
    hosts: Path | None,
    bind: str | None,
    data: Path | None,
    events: str | None,
    report_fd: int | None,
    order_fd: int | None,
    paced: bool,
    prediction: str | None,
    run_id: str,
    attempt: int,
    guard_fd: int | None,
    **options: Any,
) -> None:
    """Run one node of BUILD.

    `placer launch` does this for all nodes. To start the nodes by hand, run this command
    once for each node, in any order and with the same options. Nodes on other machines
    need their addresses (--endpoints, --hosts) and a key (--key). The first node of the
    build prints the result. Before a node joins the others, it checks that the first rows
    of its files fit the model. With --checkpoint or --save-params, Ctrl-C or SIGTERM on
    any node stops all nodes after the same step, and they save. With --restarts, the
    command starts the node again after a failure.

    If BUILD is -, the node reads the build and the key from standard input, and ends when
    standard input closes. `placer launch BUILD --hosts FILE` starts nodes this way.
    """
    relay = str(build) == "-"
    if relay:  # The relay forks, so it comes before any thread is started.
        from placer.launcher.remote_node import become_node

        remote = become_node()
        build, report_fd, order_fd = remote.build, remote.report_fd, remote.order_fd
    launched = report_fd is not None
    is_guard = bool(options["restarts"]) and not launched and guard_fd is None
    if events is not None:
        report_fd = _open_events(events, keep=guard_fd is not None)
        if events == "-" and not is_guard:
            os.dup2(2, 1)
    from placer.launcher.checks import check_can_go_back, check_output_files
    from placer.launcher.data_check import check_build_data
    from placer.launcher.engines.surroundings import look_around
    from placer.launcher.guard import begin_guarded, guard_of
    from placer.launcher.hosts import read_hosts
    from placer.launcher.parent import end_with_parent
    from placer.plan.plan import read_plan
    from placer.report.outcome import result_lines
    from placer.runtime.control.option_checks import check_base_port, check_effects
    from placer.runtime.control.options import Options
    from placer.runtime.control.result import PredictionResult
    from placer.runtime.prediction.request import read_request
    from placer.runtime.process.entry_point import default_endpoints, run
    from placer.runtime.process.guard_notes import GuardNotes
    from placer.runtime.signals.interruption import interruption_of
    from placer.runtime.signals.node_signals import NodeSignals
    from placer.runtime.signals.signals import signals_piped

    if launched:
        end_with_parent()
    if guard_fd is not None:
        begin_guarded(guard_fd)
    plan = read_plan(build)
    chosen = Options(**options)
    names, is_auto = [*plan.processes], node == AUTO
    if is_auto:
        node = look_around(names, os.environ).node
    reads_rows = any(each.reads_rows for each in plan.process(node))
    if data is not None and not data.is_dir() and reads_rows:
        raise PlacerError(
            f"{node} reads rows, but the folder '{data}' of --data does not exist",
            hint=path_hint(data, Path.is_dir),
        )
    if hosts is not None and plan.processes.keys() <= (endpoints or {}).keys():
        raise PlacerError(
            "--hosts has no effect: --endpoints or PLACER_ENDPOINTS gives the address of "
            "every node"
        )

    def addresses_from(port: int | None) -> dict[str, str]:
        addresses = default_endpoints(plan, port)
        if is_auto:
            addresses |= look_around(names, os.environ, port).endpoints
        if hosts is not None:
            addresses |= read_hosts(hosts, names, port)
        return addresses | (endpoints or {})

    check_base_port(chosen.base_port, addresses_from)
    if is_guard:
        check_effects(plan, chosen)
        check_can_go_back(plan, build, chosen)
        guard_of(node, chosen.restarts, run_id, report_fd, order_fd).run()
    if not launched and not is_auto and events is None:
        # This node was started by hand.
        check_build_data(plan, build, plan.process(node))
    is_control = plan.process(node)[0].name == plan.control
    if is_control and not launched:  # Otherwise the launcher has checked them.
        check_output_files(build, chosen)
    with signals_piped(launched=launched) as pipe:
        signals = NodeSignals(pipe, interruption_of(plan, build, chosen))
        try:
            result = run(
                build,
                node,
                endpoints=addresses_from(chosen.base_port),
                options=chosen,
                report_fd=report_fd,
                alone=not launched,
                order_fd=order_fd,
                paced=paced,
                relay=relay,
                bind=bind,
                prediction=read_request(prediction) if prediction else None,
                run_id=run_id,
                attempt=attempt,
                guard=None if guard_fd is None else GuardNotes(guard_fd),
                signals=signals,
            )
        except PlacerError as error:
            signals.raise_first(failure=str(error))
            if is_control and not launched:  # Otherwise the launcher prints it.
                signals.interruption.explain(error)
            raise
        if isinstance(result, PredictionResult):  # only a launcher requests predictions
            return
        if result is not None and not launched:
            # Otherwise the launcher prints the result.
            for line in result_lines(result):
                echo(line, err=events is not None)
            signals.raise_first(result.steps)


def _open_events(path: str, *, keep: bool) -> int:
    """Return a descriptor for events. If `keep`, they follow those in the file."""
    if path == "-":
        return os.dup(1)
    # The guard of a node writes to the same file.
    mode = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, mode if keep else mode | os.O_TRUNC, 0o644)
    except OSError as error:
        raise PlacerError(f"cannot write '{path}': {error.strerror}") from None
