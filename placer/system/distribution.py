"""Finds the distribution of placer, and other programs with a package of the same name."""

from __future__ import annotations

from importlib.metadata import Distribution, distributions, entry_points

from placer.errors import PlacerError

_PACKAGE = "placer"
_COMMAND = "placer.command:main"
REINSTALL = "in a clone of placer: pip install --force-reinstall --no-deps ."
"""How to restore files of placer that pip has removed or replaced."""


def own_distribution() -> Distribution | None:
    """Return the installed distribution of placer, or None in a checkout that is not
    installed. Only this distribution has the command `placer.command:main`."""
    for point in entry_points(group="console_scripts", name=_PACKAGE):
        if point.value == _COMMAND:
            return point.dist
    return None


def distribution_name() -> str:
    """Return the name of placer's distribution, or `placer` if none is installed."""
    own = own_distribution()
    return _PACKAGE if own is None else own.name


def other_distribution() -> Distribution | None:
    """Return another program's distribution that contains a package `placer`, if any."""
    for each in distributions():
        commands = each.entry_points.select(group="console_scripts", value=_COMMAND)
        if not commands and _PACKAGE in top_level_modules(each):
            return each
    return None


def top_level_modules(distribution: Distribution) -> set[str]:
    """Return the names of the top-level modules and packages of a distribution."""
    listed = distribution.read_text("top_level.txt")
    if listed is not None:
        return {*listed.split()}
    tops = {file.parts[0] for file in distribution.files or ()}
    modules = {name.removesuffix(".py") for name in tops}
    return {name for name in modules if name.isidentifier() and name != "__pycache__"}


def explain_replaced_package(folder: str) -> PlacerError:
    """Return the error for a package `placer` without placer's own `__init__.py`.

    pip replaces this file when it installs another program with a package `placer`. It
    removes the file when it uninstalls that program.

    Args:
        folder: the folder of the package.
    """
    other = other_distribution()
    if other is not None:
        message = (
            f"the distribution '{other.name}' {other.version} has replaced"
            f" {folder}/__init__.py, a file of {distribution_name()}"
        )
        hint = remove_other(other)
    else:
        message = (
            f"{folder}/__init__.py is missing, or belongs to another program than"
            f" {distribution_name()}"
        )
        hint = REINSTALL
    return PlacerError(message, hint=hint)


def remove_other(other: Distribution) -> str:
    """Return the commands that replace another program by placer."""
    return f"pip uninstall {other.name}; then {REINSTALL}"
