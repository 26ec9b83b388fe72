"""Finds engines by name: the engines of placer, and modules of `placer.engines` entry
points."""

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
    """Return the module of an engine. Raises PlacerError if no engine has this name, or
    the module of an entry point is not an engine."""
    if name in OWN:
        return cast(Engine, import_module(f"placer.launcher.engines.{name}"))
    for point in entry_points(group=GROUP):
        if point.name == name:
            engine = point.load()
            for attribute in ("OPTIONS", "write", "submit", "watch"):
                if not hasattr(engine, attribute):
                    raise PlacerError(
                        f"the entry point '{name}' of {GROUP} is not an engine: "
                        f"'{point.value}' has no '{attribute}'"
                    )
            return cast(Engine, engine)
    names = engine_names()
    raise PlacerError(
        f"unknown engine '{name}'",
        hint=did_you_mean(name, names) or f"one of: {', '.join(names)}",
    )
