"""Finds engines by their names: those of placer, and those of the entry points
`placer.engines`, each of which names a module."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, cast

from placer.errors import PlacerError, did_you_mean
from placer.launcher.engines.engine import Engine

GROUP: Final = "placer.engines"
OWN: Final = ("slurm", "kubernetes", "ray")


def engine_names() -> list[str]:
    """Return the names of all engines."""
    others = {point.name for point in entry_points(group=GROUP)}
    return [*OWN, *sorted(others - {*OWN})]


def find_engine(name: str) -> Engine:
    """Return the module of an engine.

    Raises PlacerError if there is none of that name, or if what an entry point names is
    no engine.
    """
    if name in OWN:
        return cast(Engine, import_module(f"placer.launcher.engines.{name}"))
    for point in entry_points(group=GROUP):
        if point.name == name:
            engine = point.load()
            for attribute in ("OPTIONS", "write", "submit", "watch"):
                if not hasattr(engine, attribute):
                    raise PlacerError(
                        f"the entry point '{name}' of {GROUP} is no engine:"
                        f" '{point.value}' has no '{attribute}'"
                    )
            return cast(Engine, engine)
    names = engine_names()
    raise PlacerError(
        f"there is no engine '{name}'",
        hint=did_you_mean(name, names) or f"one of: {', '.join(names)}",
    )
