"""Every command of a tutorial runs, in an empty folder, and prints what the page says.

`.ci/installed.py` runs the same pages with an installed wheel, in every run of the CI.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.real_runs import process_environment
from support.tutorial import PAGES, is_as_written, run_page

DOCS = Path(__file__).parents[2] / "docs"
ASK = """
import asyncio, sys
import httpx, serve

async def ask():
    to = httpx.ASGITransport(serve.app)
    async with httpx.AsyncClient(transport=to, base_url="http://model") as client:
        return await client.post("/predict", content=sys.argv[1])

print(asyncio.run(ask()).text)
"""


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
    if page == "start/tutorial.md":
        check_the_request_of_the_serving_page(folder, environment)
    reached = [float(text) for text in re.findall(r"accuracy (0\.[0-9]+)", output)]
    assert reached[-1] > 0.87


def check_the_request_of_the_serving_page(folder, environment):
    """Send the request of docs/how-to/serving.md to its service, with the tutorial's model."""
    text = (DOCS / "how-to" / "serving.md").read_text()
    (service,) = re.findall(r"```python\n(# serve.py.*?)```", text, re.DOTALL)
    ((request, answer),) = re.findall(r"-d '(.*)'\n(.*)", text)
    (folder / "serve.py").write_text(service)
    printed = subprocess.run(
        [sys.executable, "-c", ASK, request],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert is_as_written(printed.strip(), answer), printed


@pytest.mark.parametrize(
    ("printed", "page", "same"),
    [
        ("accuracy 0.8854", "accuracy 0.8855", True),
        ("accuracy 0.878", "accuracy 0.89", False),
        ("accuracy 0.88", "accuracy 0.90", False),
        ("[0.99874]", "[0.998…]", True),
        ("[0.99674]", "[0.998…]", False),
        ("4.7 MB sent", "4.9 MB sent", True),
        ("4.7 sent", "4.9 sent", False),
    ],
)
def test_numbers_of_a_page_may_differ_by_a_unit_of_the_last_digit(printed, page, same):
    assert is_as_written(printed, page) is same
