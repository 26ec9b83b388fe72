"""How a parameter begins: the forms of `init` that a spec may write.

The values themselves are made by `placer.runtime.initial`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.graph.scalars import real, shown, unknown

BARE: dict[str, str] = {
    "zeros": "all 0",
    "ones": "all 1",
    "uniform": "uniform on [-0.05, 0.05]",
    "normal": "normal with mean 0 and standard deviation 0.05",
    "xavier_uniform": "uniform on ±sqrt(6 / (fan_in + fan_out)) (Glorot 2010)",
    "xavier_normal": "normal of variance 2 / (fan_in + fan_out) (Glorot 2010)",
}
"""The forms that are one word."""

WITH_ARGUMENT: dict[str, str] = {
    "constant": "{constant: c}: all c",
    "uniform": "{uniform: [low, high]}: uniform on that interval",
    "normal": "{normal: std}: normal with mean 0 and that standard deviation",
}
"""The forms that are a mapping of one key."""

DEFAULT_UNIFORM = (-0.05, 0.05)
DEFAULT_NORMAL = 0.05


def check(init: object) -> str | None:
    """What is wrong with an initialiser as a spec writes it, or None."""
    if isinstance(init, str):
        if init in BARE:
            return None
        if init in WITH_ARGUMENT:
            return f"initialiser '{init}' needs a value: {WITH_ARGUMENT[init]}"
        return unknown(init, {*BARE, *WITH_ARGUMENT}, "initialiser")
    if not isinstance(init, Mapping):
        return (
            "an initialiser is a name or a mapping of one name,"
            f" such as {{constant: 0.0}}, not {shown(init)}"
        )
    if len(init) != 1:
        return f"an initialiser has one name, here are {len(init)}"
    ((name, argument),) = init.items()
    if name in BARE and name not in WITH_ARGUMENT:
        return f"initialiser '{name}' takes no value; write {name} alone"
    if name not in WITH_ARGUMENT:
        return unknown(name, {*BARE, *WITH_ARGUMENT}, "initialiser")
    return _argument(str(name), argument)


def _argument(name: str, argument: Any) -> str | None:
    if name == "uniform":
        if not isinstance(argument, list | tuple) or len(argument) != 2:
            return f"'uniform' takes [low, high], not {shown(argument)}"
        for end in argument:
            if problem := real(end):
                return f"an end of 'uniform' {problem}"
        low, high = argument
        if not low < high:
            return f"'uniform' takes [low, high] with low < high, not [{low}, {high}]"
        return None
    problem = real(argument) if name == "constant" else real(argument, above=0.0)
    return f"'{name}' {problem}" if problem else None
