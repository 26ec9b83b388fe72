"""Who can change a file that is run: this user and root alone, or it is refused.

These are the rules by which sshd checks a user's keys (`StrictModes` of sshd_config): a
file, its folder and the folders above it, up to the user's home or to the root, belong
to the user or to root, and nobody else may write them. In the folders that the
environment variable PLACER_TRUST names, nothing is checked.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import cache
from pathlib import Path

from placer.errors import BuildError

TRUST = "PLACER_TRUST"
_WHY = "who can change a build decides what you run"
_ELSE = f"if you trust all who can, name its folder in {TRUST} (docs/security.md)"


def check_owner(place: Path, hint: str | None = None) -> None:
    """Raise BuildError unless only this user and root may write a file or a folder.

    A group that has this user as its only member may write, too. `hint` is what to do
    about it, where the rights of the place are not for this user to change.
    """
    if _is_trusted(place):
        return
    told = place.lstat()
    if told.st_uid not in _owners():
        raise BuildError(
            f"'{place}' belongs to another user, {_user(told.st_uid)}",
            hint=f"{_WHY}: {hint or 'copy the build to a folder of yours'}; {_ELSE}",
        )
    if told.st_mode & stat.S_IWOTH:
        raise BuildError(
            f"'{place}' can be written by anybody",
            hint=f"{_WHY}: {hint or 'take the right away, chmod -R o-w'}; {_ELSE}",
        )
    if told.st_mode & stat.S_IWGRP and not _is_private(told.st_gid):
        raise BuildError(
            f"'{place}' can be written by the group {_group(told.st_gid)}",
            hint=f"{_WHY}: {hint or 'take the right away, chmod -R g-w'}; {_ELSE}",
        )


def check_folder(folder: Path) -> None:
    """Raise BuildError unless only this user and root can change a folder, or put
    another in its place.

    A folder above may be written by all where it is sticky, as /tmp is: nobody can
    rename there what belongs to others.
    """
    real = folder.resolve()
    if _is_trusted(real):
        return
    check_owner(real)
    home = _home()
    for above in real.parents:
        told = above.stat()
        if not (told.st_mode & stat.S_ISVTX and told.st_uid in _owners()):
            check_owner(above, "move it to where only you can, such as your home")
        if above == home:
            break


def _is_trusted(place: Path) -> bool:
    """Whether it is in a folder that the user trusts, or is one."""
    trusted = [
        Path(name) for name in os.environ.get(TRUST, "").split(os.pathsep) if name
    ]
    return bool(trusted) and any(
        place.resolve().is_relative_to(folder.resolve()) for folder in trusted
    )


@cache
def _owners() -> frozenset[int]:
    """This user and root. Who owns `/` is root: in a container that maps users, root's
    files may show as another user's."""
    return frozenset({0, os.geteuid(), os.stat("/").st_uid})


@cache
def _is_private(group: int) -> bool:
    """Whether it is the group of this user alone, as many systems make one for each:
    it has the user's name, and no other member."""
    try:
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user and not {*found.gr_mem} - {user}


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
