"""Example programs for tests, and comparisons of their builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import placer
from placer import Program
from placer.compiler.frontend import load_text
from placer.compiler.frontend.python.yaml_text import to_yaml
from placer.errors import PlacerError

ROWS: dict[str, Any] = {"train": {"source": "sklearn:digits", "batch": 64}}
NODES: dict[str, Any] = {
    "worker": {"count": 2, "devices": {"cpu": 1, "gpu": 4}},
    "ps": {"count": 2},
}


def program(**sections: Any) -> Program:
    """Return a program for two workers with GPUs and two servers."""
    return Program(**{"name": "small", "nodes": NODES, "data": ROWS, **sections})


def build_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a build by name, except `sources.json`."""
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    del contents["sources.json"]
    return contents


def check_same_builds(new_program: Program, out: Path) -> str:
    """Check that a program and its YAML compile to the same bytes; return the YAML."""
    text = to_yaml(new_program)
    placer.compile(new_program, out / "python")
    model = load_text(text, str(new_program.folder / "model.yaml"), new_program.folder)
    placer.compile(model, out / "yaml")
    assert build_files(out / "python") == build_files(out / "yaml")
    return text


def graph_lines(text: str) -> list[str]:
    """Return the lines of the section `graph` of a spec."""
    return text.split("\ngraph:\n")[1].split("\n\n")[0].splitlines()


def error_parts(error: PlacerError, file: str) -> tuple[str, str, str | None]:
    """Return an error's message, the text that it points at in the file, and its hint."""
    span = error.span
    assert span is not None
    assert Path(span.file).resolve() == Path(file)
    assert (
        span.text == Path(file).read_text(encoding="utf-8").splitlines()[span.line - 1]
    )
    return error.message, span.text[span.column - 1 :][: span.length], error.hint
