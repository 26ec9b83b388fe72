"""The key of a run: one secret, from which every node derives what it needs.

The file of a key has 32 random bytes in hexadecimal. Each purpose has its own bytes,
derived by HKDF (RFC 5869) with SHA-256, a label, and for what belongs to a node its
name. Whoever has the secret can be any node of the run.
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
"""Bytes of a secret, and of what is derived from it."""
VARIABLE: Final = "PLACER_KEY_FILE"
"""The environment variable that names the file of the key."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """The secret of a run; it is not shown in messages."""

    secret: bytes = field(repr=False)

    def derive(self, label: str, node: str = "") -> bytes:
        """Return the 32 bytes for a purpose, and a node."""
        # HKDF: extract without a salt, and expand to one block.
        extracted = hmac.digest(bytes(KEY_BYTES), self.secret, sha256)
        info = f"placer {label} 1\0{node}\1".encode()
        return hmac.digest(extracted, info, sha256)


def new_key() -> RunKey:
    """Return a key of random bytes."""
    return RunKey(secrets.token_bytes(KEY_BYTES))


def write_key(path: Path, key: RunKey) -> None:
    """Write a key to a new file that only its owner can read.

    Raises PlacerError if the file exists, or cannot be written.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(key.secret.hex() + "\n")
            file.flush()
            os.fsync(fd)
    except OSError as error:
        raise PlacerError(f"cannot write the key '{path}': {error.strerror}") from None


def read_key(path: Path) -> RunKey:
    """Read the file of a key.

    Raises PlacerError if it cannot be read, is not a key, or if other users of the
    machine can read or write it.
    """
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
            hint=f"chmod 600 {path}",
        )
    try:
        secret = bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise PlacerError(
            f"'{path}' is not a key", hint="`placer key new FILE` writes one"
        )
    return RunKey(secret)


def find_key(path: Path | None) -> RunKey | None:
    """Return the key of a file, by default of that which PLACER_KEY_FILE names; None if
    there is no such variable. Raises PlacerError as `read_key`."""
    chosen = path or os.environ.get(VARIABLE)
    return read_key(Path(chosen)) if chosen else None


def pass_key(key: RunKey) -> int:
    """Return a descriptor of memory with a key, for a child process, which finds it at
    /proc/self/fd."""
    fd = os.memfd_create("key", os.MFD_CLOEXEC)
    os.fchmod(fd, 0o600)
    os.write(fd, key.secret.hex().encode())
    return fd
