"""The service on the page about exported models answers requests."""

import asyncio
import re
import runpy
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from support.spec_models import SPECS, initial_parameters

import placer

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A function that asks the service, and the folder with the build that it serves."""
    folder = tmp_path_factory.mktemp("service")
    plan = placer.compile(SPECS / "digits.yaml", folder / "build")
    save_file(initial_parameters(plan), folder / "params")
    placer.export(folder / "build", folder / "model", params=folder / "params")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "serve.py").write_text(program)
    modules, path = {*sys.modules}, [*sys.path]
    try:
        app = runpy.run_path(str(folder / "serve.py"))["app"]
    finally:
        sys.path[:] = path
        for name in {"model", "prepare"} - modules:
            sys.modules.pop(name, None)

    async def post(body):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://m"
        ) as client:
            return await client.post("/predict", json=body)

    return lambda body: asyncio.run(post(body)), folder


def test_the_service_predicts_rows(service):
    ask, folder = service
    images = np.random.default_rng(0).uniform(0, 16, (5, 64)).astype("float32")
    answer = ask({"image": images.tolist()})
    assert answer.status_code == 200
    wanted = placer.predict(
        folder / "build", {"image": images}, params=folder / "params", in_process=True
    )
    got = answer.json()["probability"]
    np.testing.assert_allclose(got, wanted["probability"], rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"image": [[0] * 63]}, r"rows of shape (63,), not (64,)"),
        ({"image": [["a"] * 64]}, "not numbers"),
        ({}, "there is no column 'image'"),
        ({"image": [[0] * 64] * 65}, "send 1 to 64 rows, not 65"),
    ],
)
def test_the_service_says_what_is_wrong_with_rows(service, body, message):
    ask, _ = service
    answer = ask(body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
