"""`placer run`"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from placer.command.console import say
from placer.command.options import (
    Endpoints,
    build_argument,
    debug_option,
    run_options,
)


@click.command("run", short_help="Be one node of a build, as launch starts them all.")
@build_argument
@click.option(
    "--node", required=True, metavar="NAME:ID", help="Which node to be: worker:0."
)
@click.option(
    "--endpoints",
    type=Endpoints(),
    help="Where nodes listen: worker:0=127.0.0.1:4000,… The rest keep their places.",
)
@run_options
@click.option("--report-fd", type=click.IntRange(min=0), hidden=True)
@click.option("--order-fd", type=click.IntRange(min=0), hidden=True)
@click.option("--job", envvar="PLACER_JOB", hidden=True)
@debug_option
def run_command(
    build: Path,
    node: str,
    endpoints: dict[str, str] | None,
    steps: int | None,
    history: Path | None,
    save_params: Path | None,
    init_params: Path | None,
    base_port: int | None,
    join_timeout: float,
    deadline: float,
    carrier: str,
    emulate: bool,
    debug_nans: bool,
    report_fd: int | None,
    order_fd: int | None,
    job: str | None,
) -> None:
    """Be one node of BUILD until the run ends.

    All nodes of a build run at once, each started like this, in any order, with the
    same options. The first node of the build prints the result; with --save-params,
    Ctrl-C to it lets all nodes stop after the same step and save.
    """
    from placer.build.plan import read_plan
    from placer.launcher.local import written_files
    from placer.launcher.signals import first_signal
    from placer.report.outcome import result_lines
    from placer.runtime.run.process import Options, endpoints_of, run

    plan = read_plan(build)
    plan.node(node)
    places = endpoints_of(plan, base_port)
    for name, address in (endpoints or {}).items():
        places[plan.node(name).name] = address
    options = Options(
        steps=steps,
        **written_files(build, history=history, save_params=save_params),
        init_params=init_params,
        join_timeout=join_timeout,
        deadline=deadline,
        carrier=carrier,
        emulate=emulate,
        debug_nans=debug_nans,
    )
    # A launcher says by the descriptor when to stop; else a signal to the control node.
    alone = report_fd is None and save_params is not None and node == plan.control
    with first_signal() if alone else nullcontext() as signals:
        result = run(
            build,
            node,
            endpoints=places,
            options=options,
            report_fd=report_fd,
            order_fd=signals.wake if signals is not None else order_fd,
            job=job,
        )
    if result is not None and report_fd is None:  # else the launcher tells it
        for line in result_lines(result):
            say(line)
    if result is not None and signals is not None:
        signals.heed(
            f"stopped after step {result.steps}; the parameters are in {save_params}"
        )
