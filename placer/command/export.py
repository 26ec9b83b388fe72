"""The command `placer export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from placer.command.console import echo
from placer.command.options import listed, trained_model_options


class Batches(click.ParamType[tuple[int, ...]]):
    """Batch sizes, separated by commas."""

    name = "ROWS,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        sizes = [text.strip() for text in str(value).split(",")]
        if not all(text.isascii() and text.isdigit() and int(text) for text in sizes):
            self.fail(
                f"'{value}' is not a list of batch sizes, such as 1,32", param, ctx
            )
        return tuple(map(int, sizes))


@click.command(
    "export",
    short_help="Export a trained model as JAX and StableHLO files.",
)
@trained_model_options
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Output folder. It must be new or empty.",
)
@click.option(
    "--batch",
    **listed(Batches()),
    help="Write one StableHLO file for each of these batch sizes, such as 1,32, instead of one "
    "file for any size.",
)
def export_command(
    build: Path,
    params: Path,
    out: Path,
    outputs: tuple[str, ...] | None,
    batch: tuple[int, ...] | None,
    overrides: tuple[str, ...],
    code: bool,
) -> None:
    """Export the model of BUILD, with trained parameters, to a folder.

    The exported model needs no placer. model.py contains the model as a JAX function, and
    prepare.py converts columns of rows to its arguments. params.safetensors holds the
    parameters. model.stablehlo is the model in the format of jax.export.

    The build needs outputs: set `predict` in the spec, or use `placer compile --outputs`.
    A SPEC is first compiled into a temporary folder; --set and --no-code apply only to a
    SPEC.
    """
    from placer.compiler.build_or_spec import build_folder
    from placer.exporting.export import export

    with build_folder(
        build,
        overrides=overrides,
        single_process=True,
        outputs=outputs,
        code=code,
    ) as folder:
        model = export(
            folder,
            out,
            params=params,
            outputs=outputs or (),
            batch=tuple(dict.fromkeys(batch or ())),
        )
    for text in model.warnings:
        echo(f"warning: {text}", err=True)
    arguments = ", ".join(("params", *model.arguments))
    echo(f"model({arguments}) -> {', '.join(model.outputs)}")
    echo(f"  written to {out}: {', '.join(model.files)}")
