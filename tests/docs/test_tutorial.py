"""The service of the serving page answers with the tutorial's model as the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import is_as_written, run_page, with_placer
from support.real_runs import process_environment

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
def test_the_service_answers_as_the_page_says(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = with_placer(tmp_path, process_environment())
    run_page(DOCS / "start" / "tutorial.md", folder, environment)
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
