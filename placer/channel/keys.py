"""The key of a run: one secret, from which every node derives its own keys.

A key file holds 32 random bytes in hexadecimal. HKDF (RFC 5869) with SHA-256 derives 32 bytes
for each purpose, from a label and, for the keys of a node, its name. A process that has the
secret can act as any node of the run.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from placer.errors import PlacerError

KEY_BYTES: Final = 32
"""The size of a secret, and of each derived key, in bytes."""
VARIABLE: Final = "PLACER_KEY_FILE"
"""The environment variable with the path of the key file."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """The secret of a run; messages do not show it."""

    secret: bytes = field(repr=False)

    def derive(self, label: str, node: str = "") -> bytes:
        """Return the 32 bytes derived for a purpose and a node."""
        # HKDF: extract without a salt, and expand to one block.
        extracted = hmac.digest(bytes(KEY_BYTES), self.secret, sha256)
        info = f"placer {label} 1\0{node}\1".encode()
        return hmac.digest(extracted, info, sha256)


def new_key() -> RunKey:
    return RunKey(secrets.token_bytes(KEY_BYTES))


def write_key(path: Path, key: RunKey) -> None:
    """Write a key to a new file that only its owner can read. Raises PlacerError if the
    file exists or cannot be written."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(key.secret.hex() + "\n")
            file.flush()
            os.fsync(fd)
    except OSError as error:
        raise PlacerError(f"cannot write the key '{path}': {error.strerror}") from None


def read_key(path: Path) -> RunKey:
    """Read a key file. Raises PlacerError if it cannot be read, is not a key, or is
    accessible to other users of the machine."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            data = file.read(1024) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise PlacerError(f"cannot read the key '{path}': {error.strerror}") from None
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o077:
        raise PlacerError(
            f"other users can read the key '{path}' (mode {status.st_mode & 0o777:o})",
            hint=f"run `chmod 600 {path}`",
        )
    try:
        secret = bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise PlacerError(
            f"'{path}' is not a key file", hint="create one with `placer key new FILE`"
        )
    return RunKey(secret)


def find_key(path: Path | None) -> RunKey | None:
    """Return the key in a file, by default the file in PLACER_KEY_FILE. Returns None if
    `path` is None and the variable is not set. Raises PlacerError as `read_key`
    does."""
    chosen = path or os.environ.get(VARIABLE)
    return read_key(Path(chosen)) if chosen else None


def pass_key(key: RunKey) -> int:
    """Return a file descriptor of memory that holds a key, for a child process. The
    child opens it in /proc/self/fd."""
    fd = os.memfd_create("key", os.MFD_CLOEXEC)
    os.fchmod(fd, 0o600)
    os.write(fd, key.secret.hex().encode())
    return fd
