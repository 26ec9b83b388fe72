"""The command `placer to-yaml`."""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import echo
from placer.command.options import python_argument


@click.command("to-yaml", short_help="Convert a model in Python to a YAML spec.")
@python_argument
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the spec to FILE instead of standard output.",
)
def to_yaml_command(spec: Path, out: Path | None) -> None:
    """Convert the model that FILE.py:FUNCTION builds to a YAML spec.

    The spec compiles to the same build. Files of initial values, which `placer.trace`
    creates, are written next to the spec.
    """
    from placer.compiler.frontend.python.read import run_builder
    from placer.compiler.frontend.python.yaml_text import to_yaml
    from placer.errors import SpecError

    program = run_builder(str(spec))
    text = to_yaml(program)
    if out is None:
        echo(text, nl=False)
        if program.files:
            names = ", ".join(program.files)
            echo(f"the spec needs {names}; use --out to write it as well", err=True)
        return
    model = program.model()
    sources = [rows.source for rows in (model.train, model.eval) if rows is not None]
    needs_files = model.modules or any(not s.startswith("sklearn:") for s in sources)
    if needs_files and out.parent.resolve() != program.folder.resolve():
        raise SpecError(
            f"{out} is not in the folder of {program.file}, but refers to files there",
            hint="write the spec to that folder: its data and modules are read from the folder "
            "of the spec",
        )
    try:
        for name, content in program.files.items():
            _write_new(out.parent / name, content)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {out}: {error.strerror}") from error


def _write_new(file: Path, content: bytes) -> None:
    from placer.errors import SpecError
    from placer.system.files.regular import UnreadableError, read_regular

    try:
        is_other = file.exists() and read_regular(file, len(content)) != content
    except UnreadableError:
        is_other = True
    if is_other:
        raise SpecError(
            f"{file} already exists, with different content",
            hint="move the existing file: placer.trace needs this name",
        )
    file.write_bytes(content)
