"""Published models in float32, with a process for each node."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from published import check, of_nnx, of_pytrees, train, train_plain

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("module", "placement", "parts"),
    [
        ("test_published_gpt2", "servers", of_pytrees),
        ("test_published_gcn", "all-reduce", of_nnx),
    ],
)
def test_processes_train_as_plain_jax(
    module: str, placement: str, parts: object, tmp_path: Path
) -> None:
    model = import_module(module).MODEL  # skips if a package is missing
    model = replace(model, precision="float32", tolerance=1e-5)
    got = train(model, placement, tmp_path, in_process=False)
    check(model, got, train_plain(model, parts))
