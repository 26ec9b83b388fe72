"""The virtual environment of the peers: what placer is compared with, and does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PEERS = ("torch==2.13.0", "tensorflow-cpu==2.21.0", "numpy")
FOLDER = Path(__file__).parent


def set_up(folder: Path) -> None:
    """Install the peers into `folder`, once."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", *PEERS]
    subprocess.run(pip, check=True)


def command(folder: Path, script: str) -> list[str]:
    """Return the command line of a script of this folder, without its arguments."""
    return [str(folder / "bin" / "python"), str(FOLDER / script)]
