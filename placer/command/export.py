"""The command `placer export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from placer.command.console import echo
from placer.command.options import trained_model_options


class Batches(click.ParamType[tuple[int, ...]]):
    """Numbers of rows that are separated by commas."""

    name = "ROWS,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        sizes = [text.strip() for text in str(value).split(",")]
        if not all(text.isascii() and text.isdigit() and int(text) for text in sizes):
            self.fail(f"'{value}' is not a list of batches, such as 1,32", param, ctx)
        return tuple(dict.fromkeys(map(int, sizes)))


@click.command(
    "export", short_help="Write a trained model that needs no placer: JAX, StableHLO."
)
@trained_model_options
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder to write: a new or an empty one.",
)
@click.option(
    "--batch",
    type=Batches(),
    default=(),
    help="Write StableHLO files for these numbers of rows, such as 1,32, instead of "
    "one for any number.",
)
def export_command(
    build: Path,
    params: Path,
    out: Path,
    outputs: tuple[str, ...],
    batch: tuple[int, ...],
    overrides: tuple[str, ...],
    code: bool,
) -> None:
    """Write the model of BUILD, with trained parameters, to a folder.

    It is used from there without placer: model.py has it as a function of JAX,
    prepare.py turns columns of rows into its arguments, params.safetensors has the
    parameters, and model.stablehlo is the model in the format of jax.export.

    The build needs outputs: `predict` in the spec, or `placer compile --outputs`. A
    SPEC is compiled first, into a temporary folder; --set and --no-code are for a SPEC.
    """
    from placer.compiler.build_or_spec import build_folder
    from placer.exporting.export import export

    with build_folder(
        build, overrides=overrides, outputs=outputs or None, code=code
    ) as folder:
        model = export(folder, out, params=params, outputs=outputs, batch=batch)
    for text in model.warnings:
        echo(f"warning: {text}", err=True)
    arguments = ", ".join(("params", *model.arguments))
    echo(f"model({arguments}) -> {', '.join(model.outputs)}")
    echo(f"  written to {out}: {', '.join(model.files)}")
