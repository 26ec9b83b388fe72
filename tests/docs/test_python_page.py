"""The examples of docs/reference/python.md are correct."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import placer
from placer.compiler.frontend.python.read import run_builder
from placer.compiler.frontend.python.yaml_text import to_yaml
from placer.errors import SpecError

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text(
    encoding="utf-8"
)
MODEL, *PIECES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(BLOCKS,) = (piece for piece in PIECES if "class Block" in piece)
PIECES.remove(BLOCKS)
(YAML,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
(MISTAKE,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "blocks.py").write_text(BLOCKS)
    return tmp_path / "model.py"


def test_the_complete_model_trains(model: Path, tmp_path: Path) -> None:
    placer.compile("model.py:build", tmp_path / "build")
    result = placer.launch(tmp_path / "build", in_process=True, steps=30)
    assert result.eval is not None
    assert result.eval["accuracy"] > 0.5


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.split("\n")[0])
def test_each_example_runs_inside_the_model(
    model: Path, tmp_path: Path, piece: str
) -> None:
    head = MODEL.split('        with place_guard("/node:ps/cpu"):\n')[0]
    head = head.replace("            append_backward(loss)\n", "")
    assert head != MODEL
    imports = "import placer\nfrom placer import device_guard, remat\n"
    body = textwrap.indent(piece, " " * 8)
    model.write_text(f"{imports}{head}{body}    return program\n")
    assert not run_builder("model.py:build").is_empty


def test_the_yaml_is_that_of_the_model(model: Path) -> None:
    assert YAML in to_yaml(run_builder("model.py:build"))


def test_the_default_program_is_filled(model: Path) -> None:
    (fill,) = (piece for piece in PIECES if "def fill" in piece)
    imports = "from placer import layers, optimizer\n"
    model.write_text(imports + fill)
    assert "minimize: reduce_mean_0" in to_yaml(run_builder("model.py:fill"))


def test_the_mistake_is_reported_as_shown(model: Path) -> None:
    wrong = MODEL.replace("layers.fc(h, 10)", 'layers.fc(h, 10, activation="rleu")')
    model.write_text(wrong)
    with pytest.raises(SpecError) as caught:
        run_builder("model.py:build")
    assert f"{caught.value}\n" == MISTAKE


def test_every_optimizer_is_on_the_page() -> None:
    missing = {name for name in placer.optimizer.__all__ if f"`{name}`" not in PAGE}
    assert missing == set()
