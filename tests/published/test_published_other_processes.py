"""Models of Equinox and Haiku in float32, with a process for each node."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from published import check, of_pytrees, train, train_plain

pytest.importorskip("equinox", reason="pip install '.[models]'")
from other_libraries import of_equinox

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("module", "name", "placement", "parts"),
    [
        ("test_published_equinox", "flow", "servers", of_equinox),
        ("test_published_haiku", "vqvae", "all-reduce", of_pytrees),
    ],
)
def test_processes_train_as_plain_jax(
    module: str, name: str, placement: str, parts: object, tmp_path: Path
) -> None:
    model = import_module(module).MODELS[name]  # skips if a package is missing
    model = replace(model, precision="float32", tolerance=1e-5)
    got = train(model, placement, tmp_path, in_process=False)
    check(model, got, train_plain(model, parts))
