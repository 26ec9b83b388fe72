"""The distribution of placer is found by its command, not by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from placer.compiler.frontend.entries.module_names import reserved_modules
from placer.system.distribution import (
    REINSTALL,
    distribution_name,
    explain_replaced_package,
    other_distribution,
    own_distribution,
)


def install(folder: Path, name: str, metadata: str = "", **files: str) -> None:
    """Write the metadata of a distribution."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{metadata}")
    for file, text in files.items():
        (info / f"{file}.txt").write_text(text)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with installed distributions; the first has another `placer`."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    install(tmp_path, "placer", top_level="placer\ndrawing\n")
    return tmp_path


@pytest.fixture
def with_own(packages: Path) -> None:
    command = "[console_scripts]\nplacer = placer.command:main\n"
    install(
        packages,
        "renamed",
        "Requires-Dist: needed>=2\nRequires-Dist: extra; extra == 'e'\n",
        top_level="placer\n",
        entry_points=command,
    )
    install(packages, "needed", top_level="needed_module\n")
    install(packages, "extra", top_level="extra_module\n")


@pytest.mark.usefixtures("with_own")
def test_both_distributions_are_found() -> None:
    own, other = own_distribution(), other_distribution()
    assert own is not None
    assert other is not None
    assert (own.name, other.name) == ("renamed", "placer")


def test_a_checkout_has_no_distribution(packages: Path) -> None:
    assert own_distribution() is None
    assert distribution_name() == "placer"


@pytest.mark.usefixtures("with_own")
def test_the_error_for_a_replaced_package_names_both() -> None:
    error = explain_replaced_package("lib/placer")
    assert error.message == (
        "the distribution 'placer' 1.0 has replaced lib/placer/__init__.py, a file of"
        " renamed"
    )
    assert error.hint == f"pip uninstall placer; then {REINSTALL}"


@pytest.mark.usefixtures("with_own")
def test_names_of_modules_are_reserved_for_the_requirements_of_placer() -> None:
    """Not for the modules of the other program."""
    names = reserved_modules.__wrapped__()
    assert {"placer", "needed_module"} <= names
    assert names.isdisjoint({"drawing", "extra_module"})
