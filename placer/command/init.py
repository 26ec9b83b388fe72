"""The command `placer init`."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Final

import click

from placer.command.console import echo
from placer.command.options import NameList, listed
from placer.command.paths import ExistingPath

_MAX_NAMED: Final = 8


@click.command("init", short_help="Write a first spec with comments.")
@click.argument(
    "table",
    required=False,
    metavar="[FILE.csv|FILE.parquet]",
    type=ExistingPath(dir_okay=False),
)
@click.option(
    "--label",
    metavar="COLUMN",
    help="The column to predict. Default: the column named label, target, class or y, or else "
    "the last column.",
)
@click.option(
    "--task",
    type=click.Choice(("classification", "regression")),
    help="Predict a class or a quantity. By default, a label with words or with few different "
    "whole numbers is a class.",
)
@click.option(
    "--ids",
    metavar="COLUMN,...",
    **listed(NameList()),
    help="Columns with identifiers, such as user numbers, which are not quantities. Columns "
    "with names like user_id are detected automatically.",
)
@click.option(
    "--out",
    metavar="SPEC.yaml",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. Default: model.yaml, or the name of the table with .yaml, in the "
    "working folder.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init_command(
    table: Path | None,
    label: str | None,
    task: str | None,
    ids: tuple[str, ...] | None,
    out: Path | None,
    force: bool,
) -> None:
    """Write a commented spec that is ready to train.

    Without a file, the spec is a small model of the handwritten digits in scikit-learn.
    With a CSV or Parquet file, the model predicts one column from the others. The inputs,
    vocabularies and layers are chosen from the values in the columns. Of a large file,
    only the first rows are read.
    """
    if table is None:
        for option, value in (("--label", label), ("--task", task), ("--ids", ids)):
            if value:
                raise click.UsageError(f"{option} needs a FILE.csv or FILE.parquet")
        from placer.command.starter.digits import digits_spec

        out = out or Path("model.yaml")
        _check_target(out, force)
        text = digits_spec(str(out))
    else:
        out = out or Path(f"{Path(table.name.removesuffix('.gz')).stem}.yaml")
        _check_target(out, force)
        text = _describe(table, label, task, [*(ids or ())], out)
    from placer.errors import SpecError
    from placer.system.files.atomic import atomic_file

    try:
        with atomic_file(out, 0o644) as file:
            file.write(text.encode())
    except OSError as error:
        raise SpecError(f"cannot write {out}: {error.strerror}") from error
    echo(f"written to {out}; train it with: placer train {quote(str(out))}")


def _check_target(out: Path, force: bool) -> None:
    """Raise an error if the file is not YAML, or would be overwritten."""
    if out.suffix not in (".yaml", ".yml"):
        raise click.UsageError(
            f"--out: the name of a spec must end in .yaml, not {out.name}"
        )
    if out.exists() and not force:
        raise click.UsageError(
            f"{out} already exists; overwrite it with --force, or choose another file with --out"
        )


def _describe(
    table: Path, label: str | None, task: str | None, ids: list[str], out: Path
) -> str:
    from rich.text import Text

    from placer.command.starter.draft import draft_model
    from placer.command.starter.label import Classes, Quantity
    from placer.command.starter.spec_text import write_spec
    from placer.command.starter.table import read_table
    from placer.report.console import console
    from placer.report.numbers import format_count, plural
    from placer.system.listed import list_names

    with console(sys.stderr).status(Text(f"reading {table}")):
        read = read_table(table)
        draft = draft_model(read, label, task, ids)
    rows = f"{format_count(read.rows)} rows"
    if not read.is_whole:
        rows = f"about {rows}; the first {format_count(read.read)} were read"
    codes = [each.name for each in draft.words if each.is_codes]
    used = (
        (len(draft.numbers), "of numbers"),
        (len(codes), "of codes"),
        (len(draft.words) - len(codes), "of words"),
        (len(draft.ids), "of ids"),
        (len(draft.dates), "of dates"),
        (len(draft.left_out), "left out"),
    )
    counts = ", ".join(f"{count} {what}" for count, what in used if count)
    echo(f"{table}: {rows}; {plural(len(read.columns), 'column')}: the label, {counts}")
    if (name := read.doubtful_header) is not None:
        echo(
            f"  '{name}' is a column name in the first row and also a value of that column: "
            "if the file has no header, add one as its first line"
        )
    for each in draft.left_out:
        echo(f"  left out: {each.name or '(no name)'}: {each.why}")
    for number in draft.numbers:
        if number.markers:
            echo(
                f"  {number.name}: numbers with exceptions ({number.first_marker}), "
                "which count as missing"
            )
        if number.may_be_ids:
            echo(
                f"  {number.name}: read as a quantity; use --ids {quote(number.name)} if "
                "its numbers are identifiers"
            )
    if codes:
        echo(
            f"  few whole numbers, read as codes: {list_names(codes, _MAX_NAMED)}; the"
            " comments of the spec say how to read them as quantities"
        )
    chosen, other = "regression", "classification"
    if isinstance(draft.label, Classes):
        chosen, other = f"{other}, {len(draft.label.words)} classes", chosen
    guess = " (a guess; choose another with --label COLUMN)" if draft.is_guess else ""
    echo(f"label: {draft.label.name}{guess}")
    is_other_possible = isinstance(draft.label, Quantity) or draft.label.may_be_quantity
    choice = (
        f" (use --task {other} for the other)"
        if task is None and is_other_possible
        else ""
    )
    echo(f"task: {chosen}{choice}")
    return write_spec(draft, out)
