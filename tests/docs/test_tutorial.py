"""Every command of `docs/tutorial.md` runs, in an empty folder, and prints what it says."""

import os
import re
import sys
from pathlib import Path

from support.real_runs import process_environment
from support.tutorial import run_page

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_runs_in_an_empty_folder(tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "placer").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m placer "$@"\n'
    )
    (commands / "placer").chmod(0o755)
    path = os.pathsep.join(
        [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    folder = tmp_path / "empty"
    folder.mkdir()
    output = run_page(
        PAGE, folder, "customers.yaml", process_environment() | {"PATH": path}
    )
    reached = [float(text) for text in re.findall(r"accuracy (0\.[0-9]+)", output)]
    assert reached[-1] > 0.87
