"""The service on the page about exported models runs under uvicorn, and answers requests."""

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from support.published import build_published
from support.spec_models import SPECS, initial_parameters

import placer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serving.md"


def program_of_page(name="serve.py"):
    form = rf"```python\n(# {re.escape(name)}.*?)```"
    (program,) = re.findall(form, PAGE.read_text(), re.DOTALL)
    return program


def test_the_service_has_at_most_42_lines():
    assert len(program_of_page().splitlines()) <= 42


@contextmanager
def served(folder, program):
    """A client of a program of the page, which runs in a process in a folder."""
    (folder / program).write_text(program_of_page(program))
    app = f"{Path(program).stem}:app"
    command = [sys.executable, "-m", "uvicorn", app, "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"running on (http://[0-9.:]+)", line):
                    break
            else:
                pytest.fail(f"uvicorn has ended:\n{said}")
            with httpx.Client(base_url=found[1], timeout=60, trust_env=False) as client:
                yield client
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A client of the service, and its folder, with the build and the parameters of the
    model."""
    folder = tmp_path_factory.mktemp("service")
    plan = placer.compile(SPECS / "digits.yaml", folder / "build")
    save_file(initial_parameters(plan), folder / "params")
    placer.export(folder / "build", folder / "model", params=folder / "params")
    with served(folder, "serve.py") as client:
        yield client, folder


def test_the_service_predicts_rows(service):
    client, folder = service
    images = np.random.default_rng(0).uniform(0, 16, (5, 64)).astype("float32")
    answer = client.post("/predict", json={"image": images.tolist()})
    assert answer.status_code == 200
    wanted = placer.predict(
        folder / "build", {"image": images}, params=folder / "params", in_process=True
    )
    got = answer.json()
    assert got.keys() == wanted.keys()
    assert got["class"] == wanted["class"].tolist()
    np.testing.assert_allclose(got["probability.7"], wanted["probability.7"], rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"image": [[0] * 63]}, r"rows of shape (63,), not (64,)"),
        ({"image": [["a"] * 64]}, "not numbers"),
        ({"image": 0.5}, 'send a list for each column: {"city": ["Oslo"], …}'),
        ([{"image": [0] * 64}], 'send a list for each column: {"city": ["Oslo"], …}'),
        ({}, "there is no column 'image'"),
        ({"image": [[0] * 64] * 65}, "send 1 to 64 rows, not 65"),
    ],
)
def test_the_service_says_what_is_wrong_with_rows(service, body, message):
    client, _ = service
    answer = client.post("/predict", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.slow
def test_a_service_that_refreshes_loses_no_request(tmp_path):
    built, kept = build_published(tmp_path, table="counted"), tmp_path / "kept"
    options = {"publish": tmp_path / "serving", "checkpoint": kept, "resume": kept}
    options |= {"checkpoint_every": 1, "in_process": True}
    placer.launch(built, steps=1, **options)
    answers, ends = [], threading.Event()
    with served(tmp_path, "fresh.py") as client:

        def ask():
            while not ends.is_set():
                rows = [[1, 2, 3], [4, 5, -6]]
                answers.append(client.post("/predict", json={"keys": rows}))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for step in (4, 7, 12):
            placer.launch(built, steps=step, **options)
            deadline = time.monotonic() + 30
            while (state := client.get("/state").json())["step"] < step:
                assert time.monotonic() < deadline, state
        ends.set()
        for thread in threads:
            thread.join()
    assert len(answers) > 100
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) > 1
