"""A model that needs a missing package reports how to install it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from placer.compiler.driver import compile_in_memory
from placer.errors import KERAS_HINT, RunError, SpecError, missing_package_hint
from placer.plan.settings.data.source import Data
from placer.readers import Column, open_source
from placer.runtime.control.failure import describe_error
from placer.system.resources import find_file


@pytest.fixture(autouse=True)
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Flax nor Equinox can be imported."""
    monkeypatch.setitem(sys.modules, "flax", None)
    monkeypatch.setitem(sys.modules, "equinox", None)


@pytest.mark.parametrize("name", ["flax_block", "flax_block_gpus"])
def test_a_python_model_names_the_extra(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_in_memory(f"{find_file(f'specs/{name}.py')}:build")
    assert caught.value.message.startswith("ModuleNotFoundError: ")
    assert caught.value.span is not None
    assert caught.value.span.text == "from flax import nnx"
    assert caught.value.hint == "pip install '.[flax]' in a clone of placer"


def test_a_called_function_names_the_extra() -> None:
    with pytest.raises(SpecError) as caught:
        compile_in_memory(find_file("specs/custom_op.yaml"))
    assert "(custom_op_mixer.py:7)" in caught.value.message
    assert caught.value.span is not None
    assert caught.value.span.text.strip() == "- name: mixed"
    assert caught.value.hint == "pip install '.[equinox]' in a clone of placer"


def test_a_reader_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("import no_such_package.part\n")
    column = Column("x", "float32", ())
    with pytest.raises(RunError) as caught:
        open_source(Data("python:rows:train"), [column], tmp_path)
    assert caught.value.hint == (
        "see rows.py, line 1; pip install no_such_package; your own modules must be in the folder of the spec"
    )


def test_a_program_names_the_package() -> None:
    error = ModuleNotFoundError("No module named 'flax'", name="flax")
    assert describe_error(error) == (
        "ModuleNotFoundError: No module named 'flax'\n"
        "  hint: pip install '.[flax]' in a clone of placer"
    )


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ModuleNotFoundError(name="sklearn.extra"), None),
        (ModuleNotFoundError(name="cv2.part"), "pip install opencv-python"),
        (ModuleNotFoundError("without a name"), None),
        (ImportError(name="flax"), None),
    ],
)
def test_the_hint_names_only_missing_packages(
    error: ImportError, hint: str | None
) -> None:
    assert missing_package_hint(error) == hint


def test_keras_without_its_default_backend_gets_jax(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("placer.errors._is_installed", lambda package: False)
    code = "raise ModuleNotFoundError(name='tensorflow')"
    for module, hint in (
        ("keras.src.backend", KERAS_HINT),
        (
            "net",
            "pip install tensorflow; your own modules must be in the folder of the spec",
        ),
    ):
        with pytest.raises(ModuleNotFoundError) as caught:
            exec(code, {"__name__": module})
        assert missing_package_hint(caught.value) == hint
