"""Compiles specs of `specs/`, here or as a program: SPECS FOLDER NAME,NAME,…"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from placer.compiler.driver import compile


def compile_specs(specs: Path, folder: Path, names: Sequence[str]) -> None:
    """Compile each spec into a build of its name; `NAME_py` is one in Python, and the
    others are compiled for a single process, too."""
    for name in names:
        if name.endswith("_py"):
            compile(f"{specs}/{name[:-3]}.py:build", folder / name)
            continue
        compile(f"{specs}/{name}.yaml", folder / name)
        compile(f"{specs}/{name}.yaml", folder / f"{name}_one", single_process=True)


if __name__ == "__main__":
    _, specs, folder, names = sys.argv
    compile_specs(Path(specs), Path(folder), names.split(","))
