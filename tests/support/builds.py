"""Programs for tests, and what they are compiled to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import placer
from placer import Program
from placer.errors import PlacerError
from placer.front.yaml_text import to_yaml
from placer.spec import load_text

ROWS: dict[str, Any] = {"train": {"source": "sklearn:digits", "batch": 64}}
NODES: dict[str, Any] = {
    "worker": {"count": 2, "devices": {"cpu": 1, "gpu": 4}},
    "ps": {"count": 2},
}


def program(**sections: Any) -> Program:
    """A program of digits on two workers with GPUs and two servers."""
    return Program(**{"name": "small", "nodes": NODES, "data": ROWS, **sections})


def files(folder: Path) -> dict[str, bytes]:
    """What a build holds, without where it was written."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    del found["sources.json"]
    return found


def same_builds(made: Program, out: Path) -> str:
    """The program as YAML, which is compiled to the same bytes."""
    text = to_yaml(made)
    placer.compile(made, out / "python")
    model = load_text(text, str(made.folder / "model.yaml"), made.folder)
    placer.compile(model, out / "yaml")
    assert files(out / "python") == files(out / "yaml")
    return text


def graph(text: str) -> list[str]:
    """The lines of the section `graph` of a spec."""
    return text.split("\ngraph:\n")[1].split("\n\n")[0].splitlines()


def told(error: PlacerError, file: str) -> tuple[str, str, str | None]:
    """An error's message, what its caret points at in that file, and its hint."""
    span = error.span
    assert span is not None
    assert Path(span.file).resolve() == Path(file)
    assert (
        span.text == Path(file).read_text(encoding="utf-8").splitlines()[span.line - 1]
    )
    return error.message, span.text[span.column - 1 :][: span.length], error.hint
