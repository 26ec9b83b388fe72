"""The imports of an exported file, in the order of isort."""

from __future__ import annotations

from collections.abc import Iterable

_THIRD_PARTY = ("jax", "numpy", "safetensors")


def import_lines(imports: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Return imports, sorted, without duplicates: those of the standard library, those
    of packages, and those of the model's `own` modules, which may be other packages."""
    own = [*own]
    lines = sorted({*imports}, key=lambda line: (line.startswith("from"), line.split()[1]))
    groups = [
        [line for line in lines if _package(line) not in _THIRD_PARTY],
        [line for line in lines if _package(line) in _THIRD_PARTY],
        sorted(own),
    ]
    joined: list[str] = []
    for group in filter(None, groups):
        joined += ["", *group] if joined else group
    return joined


def _package(line: str) -> str:
    return line.split()[1].partition(".")[0]
