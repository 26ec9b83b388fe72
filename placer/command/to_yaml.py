"""`placer to-yaml`"""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import say
from placer.command.options import debug_option, python_argument


@click.command("to-yaml", short_help="Write a Python model as a spec in YAML.")
@python_argument
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The spec, instead of standard output.",
)
@debug_option
def to_yaml_command(spec: Path, out: Path | None) -> None:
    """Write the spec that says what the function of FILE.py:FUNCTION says.

    Both are compiled to the same build. Files of initial values, which `placer.trace`
    makes, are written beside it.
    """
    from placer.errors import SpecError
    from placer.front.read import run_builder
    from placer.front.yaml_text import to_yaml

    program = run_builder(str(spec))
    text = to_yaml(program)
    if out is None:
        say(text, nl=False)
        if program.files:
            names = ", ".join(program.files)
            say(f"it takes {names}, which --out writes beside it", err=True)
        return
    model = program.model()
    sources = [rows.source for rows in (model.train, model.eval) if rows is not None]
    beside = model.modules or any(not s.startswith("sklearn:") for s in sources)
    if beside and out.parent.resolve() != program.folder.resolve():
        raise SpecError(
            f"{out} is not in the folder of {program.file}, whose files it names",
            hint="data and modules are found beside the spec: write it there",
        )
    try:
        for name, content in program.files.items():
            _write_new(out.parent / name, content)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {out}: {error.strerror}") from error


def _write_new(file: Path, content: bytes) -> None:
    """Write a file that nobody asked for by name: over no other."""
    from placer.errors import SpecError

    if file.exists() and not _holds(file, content):
        raise SpecError(
            f"{file} is there, and holds something else",
            hint="what placer.trace traces goes into a file of its name: move the other",
        )
    file.write_bytes(content)


def _holds(file: Path, content: bytes) -> bool:
    from placer.files.regular import NotRegularError, TooLargeError, read_regular

    try:
        return read_regular(file, len(content)) == content
    except (NotRegularError, TooLargeError):
        return False
