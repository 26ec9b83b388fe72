"""README.md fits on a few screens, and shows what the compiler writes and draws."""

import re
from pathlib import Path

import pytest

import placer
from tools import pictures

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_the_program_is_part_of_the_compiled_one(tmp_path):
    placer.compile(ROOT / "specs" / "digits.yaml", tmp_path / "build")
    program = (tmp_path / "build" / "worker" / "program.py").read_text()
    (shown,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    for part in shown.strip().split("\n\n\n"):
        assert f"{part}\n" in program


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_up_to_date(name):
    path = pictures.path_of(name)
    assert f"docs/pictures/{path.name}" in README
    assert path.read_text(encoding="utf-8") == pictures.draw(name), (
        "run: python -m tools.pictures"
    )
