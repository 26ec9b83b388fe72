"""The service on the page about exported models runs under uvicorn, and answers requests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from support.spec_models import SPECS, initial_parameters

import placer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serving.md"


def program_of_page():
    form = r"```python\n(# serve.py.*?)```"
    (program,) = re.findall(form, PAGE.read_text(), re.DOTALL)
    return program


def test_the_service_has_at_most_42_lines():
    assert len(program_of_page().splitlines()) <= 42


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A client of the service, which runs in a process, and its folder, with the build
    and the parameters of the model."""
    folder = tmp_path_factory.mktemp("service")
    plan = placer.compile(SPECS / "digits.yaml", folder / "build")
    save_file(initial_parameters(plan), folder / "params")
    placer.export(folder / "build", folder / "model", params=folder / "params")
    (folder / "serve.py").write_text(program_of_page())
    command = [sys.executable, "-m", "uvicorn", "serve:app", "--port", "0"]
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
                yield client, folder
        finally:
            process.terminate()
            process.communicate(timeout=60)


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
