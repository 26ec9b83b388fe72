"""The command line that a fork shows is that of its node."""

from __future__ import annotations

import subprocess
import sys

SHOW = """
from pathlib import Path
from placer.launcher.command_line import show_command_line
assert show_command_line(["run", "caf\\udce9"])  # a path that is not UTF-8
print(Path("/proc/self/cmdline").read_bytes())
"""


def test_words_are_bytes_as_the_system_has_them():
    command = [sys.executable, "-c", SHOW]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith(r"b'run\x00caf\xe9\x00")
