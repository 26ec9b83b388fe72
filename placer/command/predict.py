"""The command `placer predict`."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from placer.command.console import echo
from placer.command.options import (
    NameList,
    Pairs,
    listed,
    some_run_options,
    trained_model_options,
)
from placer.runtime.control.options import OF_PREDICTION

if TYPE_CHECKING:
    from placer.launcher.supervise import Watch


@click.command("predict", short_help="Predict rows with the parameters of a run.")
@trained_model_options
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file: .parquet, .csv, .npz, or .npy for a single output.",
)
@click.option(
    "--in",
    "rows",
    metavar="ROWS",
    help="The rows to predict: a file (.csv, .csv.gz, .parquet, .npz) or a source such as "
    "sklearn:digits. Default: the rows of data.eval, or else of data.train.",
)
@click.option(
    "--keys",
    **listed(NameList()),
    help="Columns of the input to copy to the output file, such as id,name.",
)
@click.option(
    "--columns",
    **listed(Pairs("INPUT=COLUMN", "image=pixels", ".+", str)),
    help="The columns that inputs read, by name or glob, where they differ from the spec.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Write class scores as the model computes them, instead of as the columns class and "
    "probability.NAME.",
)
@click.option(
    "--single-process",
    is_flag=True,
    help="Predict in one process instead of on the nodes of the build.",
)
@some_run_options(*OF_PREDICTION)
@click.option(
    "--logs",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the logs of the nodes, as in placer launch.",
)
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the nodes as threads of this process.",
)
@click.option(
    "--quiet",
    is_flag=True,
    help="Print only warnings, errors and the result.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as one JSON object on standard output.",
)
def predict_command(
    build: Path,
    params: Path,
    out: Path,
    rows: str | None,
    outputs: tuple[str, ...] | None,
    keys: tuple[str, ...] | None,
    columns: dict[str, str] | None,
    overrides: tuple[str, ...],
    raw: bool,
    single_process: bool,
    code: bool,
    logs: Path | None,
    in_process: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict rows with all nodes of BUILD, and write the outputs in the order of the
    rows.

    The outputs are chosen by `predict` in the spec, or by `placer compile --outputs`.
    Only the ops that the outputs depend on are run, so labels may be absent. A SPEC is
    first compiled into a temporary folder; --set and --no-code apply only to a SPEC.
    """
    import msgspec

    from placer.compiler.build_or_spec import build_folder
    from placer.launcher.one_process import one_process_build
    from placer.launcher.predict import check_predict, make_request, predict_to_file
    from placer.report.outcome import prediction_lines
    from placer.report.progress.show import show_progress, show_warnings
    from placer.report.progress.view import RunView
    from placer.runtime.control.option_checks import check_one_process
    from placer.runtime.control.options import Options

    request = make_request(
        out, rows, outputs=outputs or (), keys=keys or (), columns=columns, raw=raw
    )
    chosen = Options(init_params=params, **options)
    if single_process:
        check_one_process(chosen)
    with ExitStack() as exits:
        folder = exits.enter_context(
            build_folder(
                build,
                overrides=overrides,
                single_process=single_process,
                outputs=outputs,
                code=code,
            )
        )
        if in_process and quiet:  # This also hides prints of the model's modules.
            nowhere = exits.enter_context(open(os.devnull, "w"))
            exits.enter_context(redirect_stdout(nowhere))
        elif in_process and as_json:
            # Prints of the model's modules must not mix with the result.
            exits.enter_context(redirect_stdout(sys.stderr))
        if single_process and build.is_dir():
            # Checked here, because a later message would name the temporary build.
            check_predict(folder, request, logs=logs)
            folder = exits.enter_context(one_process_build(folder))
        watch: Watch | None = None  # Threads have no live table.
        if not in_process and quiet:
            watch = show_warnings
        elif not in_process:
            plan = check_predict(folder, request)
            stream = sys.stderr if as_json else sys.stdout
            shown = show_progress(RunView.of_plan(plan, noun="row"), stream)
            watch = exits.enter_context(shown)
        result = predict_to_file(
            folder, request, chosen, in_process=in_process, logs=logs, watch=watch
        )
    for text in result.warnings:
        echo(f"warning: {text}", err=True)
    if as_json:
        shown = msgspec.to_builtins(result)
        echo(msgspec.json.encode({k: shown[k] for k in shown if k != "event"}).decode())
    else:
        for line in prediction_lines(result, out):
            echo(line)
