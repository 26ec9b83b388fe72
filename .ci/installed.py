"""Checks that every spec whose rows are shipped trains, and that the tutorials run, with only the wheel
installed.

Run this with the Python of an environment that has the wheel and no test dependencies.
For a spec that needs another package, the error must name the command that installs it.
Then the package is installed with that command, and the spec is trained.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

EXTRAS = {
    "custom_op.yaml": "equinox",
    "flax_block.py:build": "flax",
    "flax_block_gpus.py:build": "flax",
    "linen_digits.py:build": "flax",
    "nnx_cancer.py:build": "flax",
    "equinox_digits.py:build": "equinox",
    "haiku_diabetes.py:build": "haiku",
    "keras_digits.py:build": "keras",
    "digits_optax.yaml": "optax",
}
"""The specs that need another package, and the extra of placer that installs it."""
ROWS_ELSEWHERE = {"adult.yaml"}
"""The specs of rows that users download."""
STEPS = 3
PLACER = Path(sys.executable).with_name("placer")
WITHOUT = ("pytest", "hypothesis", *EXTRAS.values())


def main() -> None:
    """Check all specs; raise SystemExit or AssertionError at the first failure."""
    for package in WITHOUT:
        assert find_spec(package) is None, f"{package} is installed"
    wheel = Path(find_module("placer")).parent
    specs = wheel / "_data" / "specs"
    names = sorted({file.name for file in specs.glob("*.yaml")} - ROWS_ELSEWHERE)
    names += ["digits.py:build", *(name for name in EXTRAS if ".py:" in name)]
    assert names[3:], f"{specs} has no specs"
    with ThreadPoolExecutor(max_workers=2) as pool:  # to start is most of a short run
        checks = [
            pool.submit(check_says_what_to_install, specs / name, extra)
            if (extra := EXTRAS.get(name))
            else pool.submit(train, specs / name)
            for name in names
        ]
        for check in checks:
            check.result()
    check_report(specs / "digits.yaml")
    run_tutorial("start/tutorial.md")
    extras = sorted(set(EXTRAS.values()))
    (archive,) = Path(sys.argv[1]).glob("*.whl")
    pip = (sys.executable, "-m", "pip", "install", "--quiet")
    subprocess.run([*pip, f"{archive}[{','.join(extras)}]"], check=True)
    for name in EXTRAS:
        train(specs / name)
    run_tutorial("start/tutorial-flax.md")
    print(f"{len(names)} specs trained from the wheel")


def run_tutorial(name: str) -> None:
    """Run every command of a tutorial in an empty folder."""
    checkout = Path(__file__).parents[1]
    sys.path.append(str(checkout / "tests"))
    from support.pages import run_page

    path = os.pathsep.join([str(PLACER.parent), os.environ["PATH"]])
    page = checkout / "docs" / name
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": path}
        run_page(page, Path(folder), environment)
    print(f"{name} runs", flush=True)


def find_module(name: str) -> str:
    """Return the file of a module without importing it."""
    found = find_spec(name)
    assert found is not None, f"{name} is not installed"
    assert found.origin is not None
    return found.origin


def train(spec: Path) -> None:
    """Compile a spec and train it for `STEPS` steps, with nodes as processes."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        placer("compile", spec, "--out", build)
        said = placer("launch", build, "--steps", STEPS).stdout
    assert f"{STEPS} steps" in said, said
    print(f"{spec.name}: {STEPS} steps", flush=True)


def check_says_what_to_install(spec: Path, extra: str) -> None:
    """Check that the error for a missing package names the command that installs it."""
    with tempfile.TemporaryDirectory() as folder:
        done = placer("compile", spec, "--out", Path(folder) / "build", status=2)
    assert f"pip install '.[{extra}]'" in done.stderr, done.stderr
    print(f"{spec.name}: says what to install", flush=True)


def check_report(spec: Path) -> None:
    """Check that the wheel has the files of a report page."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        placer("report", spec, "--out", page)
        assert "</html>" in page.read_text()
    print(f"{spec.name}: has a report", flush=True)


def placer(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a `placer` command; exit if its status is not `status`."""
    # Not in the checkout, whose package would be imported instead of the installed one.
    done = subprocess.run(
        [str(PLACER), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
    )
    if done.returncode != status:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        sys.exit(f"placer {' '.join(map(str, arguments))}: exit {done.returncode}")
    return done


if __name__ == "__main__":
    main()
