"""Compares the versions of Python, placer and numerical packages between nodes."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from typing import Final

import placer
from placer.errors import RunError
from placer.runtime.control.differing import list_values
from placer.system.distribution import distribution_name

COMPUTING: Final = ("jax", "jaxlib", "numpy", "numba")
"""Packages whose versions may affect the bits of a result, in addition to placer."""


def package_versions() -> dict[str, str]:
    """Return the versions of placer and of the packages in `COMPUTING`."""
    return {"placer": placer.__version__, **_installed()}


def own_versions() -> dict[str, str]:
    """Return the versions on this node that all nodes compare."""
    return {"Python": platform.python_version(), **package_versions()}


def check_versions(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Check that nodes have the same versions.

    Args:
        versions: the result of `own_versions` on each node, by node.

    Returns:
        A warning for each version that differs only after its first two parts.

    Raises:
        RunError: if the first or the second part of a version differs.

    Example:
        check_versions({"worker:0": {"jax": "0.7.1"}, "worker:1": {"jax": "0.7.2"}})
    """
    warnings = []
    for what, by_node in _differing(versions):
        text = f"the nodes have different versions of {what}: {list_values(by_node)}"
        parts = {tuple(each.split(".")[:2]) for each in by_node.values()}
        first = next(iter(by_node.values()))
        if what == "Python":
            remedy = f"run every node with Python {first}"
        elif what == "placer":
            remedy = (
                f"install {distribution_name()} {first} on the other machines, with"
                " `pip install .` in a clone of this version"
            )
        else:
            remedy = f"pip install '{what}=={first}' on the other machines"
        if len(parts) > 1:
            raise RunError(text, hint=remedy)
        warnings.append(f"{text}; this may change the bits of the result: {remedy}")
    return warnings


@cache
def _installed() -> dict[str, str]:
    return {name: version(name) for name in COMPUTING}


def _differing(
    versions: Mapping[str, Mapping[str, str]],
) -> Iterator[tuple[str, dict[str, str]]]:
    for what in dict.fromkeys(name for each in versions.values() for name in each):
        by_node = {node: each.get(what, "none") for node, each in versions.items()}
        if len(set(by_node.values())) > 1:
            yield what, by_node
