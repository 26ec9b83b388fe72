"""Every command of a tutorial runs, in an empty folder, and prints what the page says.

`.ci/installed.py` runs the same pages with an installed wheel, in every run of the CI.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from support.real_runs import process_environment
from support.tutorial import PAGES, run_page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "changed"), PAGES.items())
def test_a_tutorial_runs_in_an_empty_folder(page, changed, tmp_path):
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
    environment = process_environment() | {"PATH": path}
    output = run_page(DOCS / page, folder, changed, environment)
    reached = [float(text) for text in re.findall(r"accuracy (0\.[0-9]+)", output)]
    assert reached[-1] > 0.87
