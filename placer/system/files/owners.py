"""Checks that only this user and root can change the files that placer runs.

The rules are those of sshd for a user's keys (`StrictModes` in sshd_config). A file, its
folder and the folders above it, up to the user's home or the root folder, must belong to
the user or to root. No other user may be able to write to them. Folders in the
environment variable PLACER_TRUST are not checked.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import cache
from pathlib import Path

from placer.errors import BuildError

TRUST_VARIABLE = "PLACER_TRUST"
_REASON = "anyone who can change a build decides which code you run"
_ALTERNATIVE = (
    "if you trust everyone who can change it, add its folder to "
    f"{TRUST_VARIABLE} (docs/reference/security.md)"
)


def check_owner(place: Path, hint: str | None = None) -> None:
    """Raise BuildError if other users except root may write to a file or folder. A group
    may write if this user is its only member. `hint` is advice for a place whose
    permissions the user cannot change."""
    if _is_trusted(place):
        return
    status = place.lstat()
    if status.st_uid not in _owners():
        problem = f"belongs to another user, {_user(status.st_uid)}"
        remedy = "copy the build to a folder that belongs to you"
    elif status.st_mode & stat.S_IWOTH:
        problem = "is writable by everybody"
        remedy = "remove the permission with chmod -R o-w"
    elif status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        problem = f"is writable by the group {_group(status.st_gid)}"
        remedy = "remove the permission with chmod -R g-w"
    else:
        return
    raise BuildError(
        f"'{place}' {problem}", hint=f"{_REASON}: {hint or remedy}; {_ALTERNATIVE}"
    )


def check_folder(folder: Path) -> None:
    """Raise BuildError if other users except root can change or replace a folder. A
    folder above it may be writable by everybody if it is sticky, such as /tmp: users
    can rename only their own files there."""
    real = folder.resolve()
    if _is_trusted(real):
        return
    check_owner(real)
    home = _home()
    for above in real.parents:
        status = above.stat()
        if not (status.st_mode & stat.S_ISVTX and status.st_uid in _owners()):
            check_owner(
                above,
                "move it to a folder that only you can write to, such as your home",
            )
        if above == home:
            break


def _is_trusted(place: Path) -> bool:
    names = os.environ.get(TRUST_VARIABLE, "").split(os.pathsep)
    folders = [Path(name).resolve() for name in names if name]
    return any(place.resolve().is_relative_to(folder) for folder in folders)


@cache
def _owners() -> frozenset[int]:
    """Return the user ids of this user and root; the owner of `/` may stand for root."""
    return frozenset({0, os.geteuid(), os.stat("/").st_uid})


@cache
def _is_private(group: int) -> bool:
    """Return True for a group with the name of the user and no other member."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == user and not {*entry.gr_mem} - {user}


@cache
def _home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
    except KeyError:
        return None


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"with the number {number}"


def _group(number: int) -> str:
    try:
        return f"'{grp.getgrgid(number).gr_name}'"
    except KeyError:
        return f"with the number {number}"
