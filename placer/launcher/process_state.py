"""What the system says of a process of this machine."""

from __future__ import annotations

from pathlib import Path


def is_frozen(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped a process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] == "T"
