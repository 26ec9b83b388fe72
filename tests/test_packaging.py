"""Files of placer are found in a wheel, an editable install and a plain checkout."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from placer.errors import PlacerError
from placer.system.resources import find_file

CHECKOUT = Path(__file__).parents[1]
FOLDERS = ("grammar", "specs")

# Code of a user that finds the files of placer, and reads one of them.
USE = """
import sys
from pathlib import Path
import placer.system.resources
from placer.place import Place
print(Path(placer.__file__).parent)
print(Place.parse("/gpu:0,1"))
for name in sys.argv[1:]:
    print(placer.system.resources.find_file(name).read_bytes().hex())
"""


def shipped() -> list[str]:
    """The files of the checkout that are distributed with the modules."""
    return sorted(
        path.relative_to(CHECKOUT).as_posix()
        for folder in FOLDERS
        for path in (CHECKOUT / folder).iterdir()
        if path.is_file()
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, because a build writes files into it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("placer", *FOLDERS):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "cli.py"):
        shutil.copy(CHECKOUT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    run(sys.executable, *build, cwd=checkout)
    assert not (checkout / "build").exists()  # the README compiles to this folder
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A virtual environment with the packages of this one, except placer."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(venv), cwd=tmp_path)
    packages = site_packages(venv / "bin" / "python")
    for key in ("purelib", "platlib"):
        for entry in Path(sysconfig.get_path(key)).iterdir():
            ours = entry.name.startswith(("placer", "__editable__"))
            there = (packages / entry.name).exists()
            if not ours and not there and entry.suffix != ".pth":
                (packages / entry.name).symlink_to(entry)
    return venv / "bin" / "python"


def site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(run(python, "-c", code, cwd=python.parent).strip())


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """Run a command; return its output, or its errors if it has to fail."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stderr if status else result.stdout


def uses(python: Path, cwd: Path) -> Path:
    """Read every distributed file by name, and return the folder of the package."""
    names = shipped()
    package, place, *contents = run(python, "-c", USE, *names, cwd=cwd).splitlines()
    assert place == "/gpu:0-1"
    assert contents == [(CHECKOUT / name).read_bytes().hex() for name in names]
    return Path(package)


def test_a_wheel_contains_only_the_package_and_its_files(
    checkout: Path, wheel: Path, python: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(site_packages(python))

    metadata = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"placer", metadata}
    modules = {
        path.relative_to(checkout).as_posix()
        for path in (checkout / "placer").rglob("*.py")
    }
    assert modules | {"placer/py.typed"} <= names
    assert {f"placer/_data/{name}" for name in shipped()} <= names

    assert uses(python, tmp_path) == site_packages(python).resolve() / "placer"


def test_an_editable_install_uses_the_files_of_the_checkout(
    checkout: Path, python: Path, tmp_path: Path
) -> None:
    # `pip install -e .` calls this function of the build backend.
    build = "import setuptools.build_meta as b, sys; b.build_editable(sys.argv[1])"
    run(sys.executable, "-c", build, tmp_path, cwd=checkout)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages(python))

    assert uses(python, tmp_path) == checkout.resolve() / "placer"


def test_another_program_named_placer_is_named(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    """pip installs it over placer, and removes its files when it uninstalls it."""
    packages = site_packages(python)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    code = "import placer.system.distribution as d; print(d.distribution_name())"
    assert run(python, "-c", code, cwd=tmp_path).strip() == project["name"]

    init = packages / "placer" / "__init__.py"
    init.write_text("__version__ = '0.0.7'\n")
    other = packages / "placer-0.0.7.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Name: placer\nVersion: 0.0.7\n")
    (other / "top_level.txt").write_text("placer\n")
    reinstall = "in a clone of placer: pip install --force-reinstall --no-deps .\n"
    assert run(python, "-m", "placer", "--version", cwd=tmp_path, status=2) == (
        f"the distribution 'placer' 0.0.7 has replaced {init}, a file of {project['name']}\n"
        f"  hint: pip uninstall placer; then {reinstall}"
    )

    init.unlink()
    shutil.rmtree(other)
    assert run(python, "-m", "placer", "--version", cwd=tmp_path, status=2) == (
        f"{init} is missing, or belongs to another program than {project['name']}\n"
        f"  hint: {reinstall}"
    )


def test_a_bare_checkout_needs_no_install(checkout: Path, python: Path) -> None:
    assert uses(python, checkout) == checkout.resolve() / "placer"


def test_a_file_that_does_not_ship_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(PlacerError) as caught:
        find_file("grammar/palce.lark")
    assert caught.value.hint == "did you mean 'grammar/place.lark'?"


NAMED = {
    "jaxlib": "jax",  # jax requires it
    "ml_dtypes": "ml-dtypes",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Names of packages by the names of their modules, where these differ."""


REPORTED = {"ray", "tensorboardX"}
"""Packages of extras that placer imports; if one is missing, it says how to install it."""


def test_a_plain_install_has_all_imported_packages() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[<>=\[]", text)[0] for text in project["dependencies"]}
    imported: set[str] = set()
    for file in (CHECKOUT / "placer").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module)
    packages = {name.partition(".")[0] for name in imported}
    others = packages - sys.stdlib_module_names - {"placer"}
    assert {NAMED.get(name, name) for name in others} <= required | REPORTED


def installed_by_name(text: str) -> list[str]:
    """Return the arguments of `pip install` that name a distribution of placer."""
    commands = re.findall(r"pip3? install\b([^`\n&;|#]*)", text)
    words = [word for each in commands for word in each.partition(" in a ")[0].split()]
    return [word for word in words if re.match(r"""['"]?placer(?!/)\b""", word, re.I)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pip install placer", ["placer"]),
        ("`pip3 install -U 'placer[ray]'`", ["'placer[ray]'"]),
        ("RUN pip install jax placer-jax==1.0", ["placer-jax==1.0"]),
        ("pip install . && placer train digits.yaml", []),
        ("`pip install '.[ray]'` in a clone of placer", []),
        ("pip install '.[ray]' in a clone of placer", []),
        ("pip install --no-cache-dir /placer", []),
        ("pip install . # installs placer", []),
    ],
)
def test_a_command_that_installs_placer_by_name_is_found(
    text: str, found: list[str]
) -> None:
    assert installed_by_name(text) == found


def test_no_command_installs_placer_from_an_index() -> None:
    """No index has placer, and a public one has another program named `placer`."""
    files = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "cli.py"]
    folders = ("docs", "placer", "specs", "grammar", "bench", "tools", ".ci", "tests")
    files += [
        path
        for folder in folders
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path != Path(__file__)
    ]
    found = {
        path.relative_to(CHECKOUT).as_posix(): words
        for path in files
        if (words := installed_by_name(path.read_text("utf-8", "ignore")))
    }
    assert not found
