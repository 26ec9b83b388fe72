"""The virtual environment of the peers: what placer is compared with, and does not need."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PEERS = ("torch==2.13.0", "tensorflow-cpu==2.21.0", "numpy")
TABLES = {
    "fbgemm": ("torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "numpy"),
    "tfra": (
        "tensorflow-cpu==2.16.2",
        "tensorflow-recommenders-addons==0.8.1",
        "tf-keras==2.16.0",
    ),
}
"""Peers of sparse tables, which need releases of their own: each has an environment in a
folder of that of the others. There are wheels for some versions of Python only."""
FOLDER = Path(__file__).parent


def set_up(folder: Path) -> None:
    """Install the peers into `folder`, once."""
    _install(folder, PEERS)


def set_up_tables(folder: Path) -> None:
    """Install the peers of sparse tables, once; say which of them there is no wheel of."""
    for name, packages in TABLES.items():
        try:
            _install(folder / name, packages)
        except subprocess.CalledProcessError:
            print(f"{name} is left out: it does not install here")
            shutil.rmtree(folder / name)


def _install(folder: Path, packages: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", *packages]
    subprocess.run(pip, check=True)


def command(folder: Path, script: str) -> list[str]:
    """Return the command line of a script of this folder, without its arguments."""
    return [str(folder / "bin" / "python"), str(FOLDER / script)]
