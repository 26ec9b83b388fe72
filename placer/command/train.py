"""The command `placer train`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from placer.command.console import echo
from placer.command.launch import ends_if_busy, launch_options, run_build
from placer.command.option_groups import GroupedCommand, command_without, grouped_option
from placer.command.options import compile_options, spec_argument

if TYPE_CHECKING:
    from placer.compiler.graph.graph import Graph
    from placer.launcher.run_folder import NewRun
    from placer.runtime.control.options import Options


@click.command(
    "train",
    cls=GroupedCommand,
    short_help="Compile a spec and run it on this machine.",
)
@spec_argument
@grouped_option(
    "Run",
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run: new or empty. Default: runs/NAME-N in the working folder, with the "
    "name of the model and the next number. With --resume, the default is the folder of the "
    "run that saved the checkpoint.",
)
@compile_options
@launch_options
def train_command(
    spec: Path,
    out: Path | None,
    overrides: tuple[str, ...],
    nodes: dict[str, int] | None,
    single_process: bool,
    outputs: tuple[str, ...] | None,
    code: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compile SPEC into a new folder, and run all nodes on this machine.

    This combines `placer compile` and `placer launch`, with the options of both. The
    run's folder keeps the command, the metrics and the end of the run, for `placer runs`
    and `placer report`. The build is in its subfolder `build`; `placer launch` runs it
    again, also on other machines (--hosts) and clusters (--on). Checkpoints are in the
    subfolder `checkpoints` if the spec has train.checkpoint without a folder. Other files
    are written only where an option or the spec names them.
    """
    from placer.compiler.driver import compile_in_memory
    from placer.compiler.passes import STEP_PASSES
    from placer.launcher.checks import claimed_folder
    from placer.launcher.run_folder import new_run
    from placer.report.outcome import plan_line
    from placer.report.repeated_work import repeated_line
    from placer.runtime.callbacks.tensorboard import check_installed
    from placer.runtime.control.option_checks import (
        check_one_process,
        check_thread_options,
    )
    from placer.runtime.control.options import Options

    run_options = {
        key: value
        for key, value in options.items()
        if key not in ("elastic", "logs", "in_process", "quiet", "tensorboard")
    }
    chosen = Options(
        **run_options
    )  # Errors in options are reported before the compilation.
    if single_process:
        check_one_process(chosen)
    if options["in_process"]:
        check_thread_options(chosen, logs=options["logs"])
    if options["tensorboard"] is not None:
        check_installed()
    final: list[Graph] = []  # the graph of a training step, then that of an evaluation

    def watch(name: str, graph: Graph) -> None:
        if name == STEP_PASSES[-1].name:
            final.append(graph)

    compiled = compile_in_memory(
        spec,
        nodes=nodes,
        overrides=overrides,
        single_process=single_process,
        outputs=outputs,
        code=code,
        publish=chosen.publish is not None,
        after_pass=watch,
    )
    plan = compiled.plan
    stream = sys.stderr if as_json else sys.stdout
    shown = {key: options[key] for key in options.keys() - run_options.keys()}
    command = command_without(())
    created: list[Path] = []
    with ExitStack() as exits:
        exits.enter_context(ends_if_busy(chosen, as_json, options["quiet"]))
        exits.enter_context(_note_removed(created, quiet=options["quiet"]))
        run = exits.enter_context(
            new_run(compiled, chosen, out, overrides=overrides, command=command)
        )
        exits.enter_context(claimed_folder(plan, _to_claim(run, spec, chosen, out)))
        created.append(run.build.parent)
        if not options["quiet"]:
            echo(f"{plan.name}: {plan_line(plan)}", file=stream)
            for note in repeated_line(plan, final[0]):
                echo(f"  {note}", file=stream)
            echo(f"{plan.name}: {_folder_line(run)}", file=stream)
        run_build(
            run.build,
            run.plan,
            run.options,
            as_json=as_json,
            note=run.note,
            folder=lambda: run.build.parent,
            **shown,
        )


def _to_claim(
    run: NewRun, spec: Path, options: Options, out: Path | None
) -> Path | None:
    """Return the folder of checkpoints that another command may use, too; None for the folder in
    a new folder of a run."""
    from placer.launcher.continued_run import checkpoints_in_run
    from placer.runtime.control.checkpoint_settings import (
        checkpoint_folder,
        needs_folder,
    )

    if run.is_continued or not needs_folder(run.plan, options):
        return checkpoint_folder(run.plan, spec, run.options)
    # A run that still goes on is not continued, but it trains the same files.
    return checkpoints_in_run(options.resume) if out is None else None


def _folder_line(run: NewRun) -> str:
    folder = run.build.parent
    if not run.is_continued:
        return f"the run's folder is {folder}"
    if run.plan.train.stream is not None:  # each command goes on with it
        return f"continues the run in {folder}"
    return (
        f"continues the run in {folder} and replaces its result; --out DIR names another"
        " folder"
    )


@contextmanager
def _note_removed(created: Sequence[Path], *, quiet: bool) -> Iterator[None]:
    """Print which folders a run without a step has removed again; if it is `quiet`, only those of
    a failed run."""
    has_failed = True
    try:
        yield
        has_failed = False
    finally:
        for folder in created:
            if not folder.exists() and (has_failed or not quiet):
                echo(f"no step was done, so the folder {folder} was removed", err=True)
