"""How a parameter begins: the forms of `init` that a spec may write.

The values themselves are made by `placer.tables.initial.initial_values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from re import compile as pattern
from typing import Any

from placer.config.checks import keys, real, shown, unknown

BARE: dict[str, str] = {
    "zeros": "all 0",
    "ones": "all 1",
    "uniform": "uniform on [-0.05, 0.05]",
    "normal": "normal with mean 0 and standard deviation 0.05",
    "truncated_normal": "that normal, cut at two standard deviations",
    "xavier_uniform": "uniform on ±sqrt(6 / (fan_in + fan_out)) (Glorot 2010)",
    "xavier_normal": "normal of variance 2 / (fan_in + fan_out) (Glorot 2010)",
    "he_uniform": "uniform on ±sqrt(6 / fan_in) (He 2015)",
    "he_normal": "normal of variance 2 / fan_in (He 2015)",
    "lecun_uniform": "uniform on ±sqrt(3 / fan_in) (LeCun 1998)",
    "lecun_normal": "normal of variance 1 / fan_in (LeCun 1998)",
    "orthogonal": "a random matrix whose rows or columns, the fewer of the two, are"
    " orthonormal (Saxe 2014)",
    "identity": "1 on the diagonal of a matrix, 0 elsewhere",
}
"""The forms that are one word."""

WITH_ARGUMENT: dict[str, str] = {
    "constant": "{constant: c}: all c",
    "uniform": "{uniform: [low, high]}: uniform on that interval",
    "normal": "{normal: std} or {normal: {mean: 0.0, std}}",
    "truncated_normal": "{truncated_normal: std} or"
    " {truncated_normal: {mean: 0.0, std}}: that normal, cut at mean ± 2 std",
    "variance_scaling": "{variance_scaling: {scale: 1.0, mode: fan_in, distribution:"
    " truncated_normal}}: of variance scale / fan",
    "orthogonal": "{orthogonal: gain}: that many times an orthogonal one",
    "identity": "{identity: gain}: gain on the diagonal of a matrix",
    "file": "{file: weights.safetensors}: the tensor of the parameter's name in that file",
}
"""The forms that are a mapping of one key."""

ALIASES: dict[str, str] = {
    "glorot_uniform": "xavier_uniform",
    "glorot_normal": "xavier_normal",
    "kaiming_uniform": "he_uniform",
    "kaiming_normal": "he_normal",
    "eye": "identity",
}
"""Other names of the forms; a graph has those on the right only."""

_NAMES = {*BARE, *WITH_ARGUMENT, *ALIASES}

MODES = ("fan_in", "fan_out", "fan_avg")
DISTRIBUTIONS = ("uniform", "normal", "truncated_normal")

DEFAULT_UNIFORM = (-0.05, 0.05)
DEFAULT_NORMAL = 0.05


def canonical(init: Any) -> Any:
    """An initialiser by the one name that the graph has for it."""
    if isinstance(init, str):
        return ALIASES.get(init, init)
    if isinstance(init, Mapping):
        return {ALIASES.get(name, name): argument for name, argument in init.items()}
    return init


def check(init: object) -> str | None:
    """What is wrong with an initialiser as a spec writes it, or None."""
    if isinstance(init, str):
        known = ALIASES.get(init, init)
        if known in BARE:
            return None
        if known in WITH_ARGUMENT:
            return f"initialiser '{init}' needs a value: {WITH_ARGUMENT[known]}"
        return unknown(init, _NAMES, "initialiser")
    if not isinstance(init, Mapping):
        return (
            "an initialiser is a name or a mapping of one name,"
            f" such as {{constant: 0.0}}, not {shown(init)}"
        )
    if len(init) != 1:
        return f"an initialiser has one name, here are {len(init)}"
    ((name, argument),) = init.items()
    known = ALIASES.get(str(name), str(name))
    if known in WITH_ARGUMENT:
        return _argument(known, argument)
    if known in BARE:
        return f"initialiser '{name}' takes no value; write {name} alone"
    return unknown(name, _NAMES, "initialiser")


def file_of(init: Any) -> str | None:
    """The file that a good initialiser takes its values from; None where it makes them."""
    found = init.get("file") if isinstance(init, Mapping) else None
    return found if isinstance(found, str) else None


def check_shape(init: Any, shape: tuple[int, ...]) -> str | None:
    """Why a good initialiser cannot fill a parameter of that shape, or None."""
    name = init if isinstance(init, str) else next(iter(init))
    match ALIASES.get(name, name):
        case "orthogonal" if len(shape) < 2:
            return f"'orthogonal' fills two dimensions or more, not {list(shape)}"
        case "identity" if len(shape) != 2:
            return f"'identity' fills a matrix, not {list(shape)}"
    return None


def _argument(name: str, argument: Any) -> str | None:
    match name:
        case "uniform":
            return _interval(argument)
        case "normal" | "truncated_normal" if isinstance(argument, Mapping):
            return _normal(name, argument)
        case "normal" | "truncated_normal":
            problem = real(argument, above=0.0)
        case "variance_scaling":
            return _variance_scaling(argument)
        case "file":
            return _file(argument)
        case _:
            problem = real(argument)
    return f"'{name}' {problem}" if problem else None


_FILE = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


def _file(argument: Any) -> str | None:
    if isinstance(argument, str) and _FILE.fullmatch(argument):
        return None
    return (
        "'file' takes the name of a file beside the spec, such as weights.safetensors,"
        f" not {shown(argument)}"
    )


def _interval(argument: Any) -> str | None:
    if not isinstance(argument, list | tuple) or len(argument) != 2:
        return f"'uniform' takes [low, high], not {shown(argument)}"
    for end in argument:
        if problem := real(end):
            return f"an end of 'uniform' {problem}"
    low, high = argument
    if not low < high:
        return f"'uniform' takes [low, high] with low < high, not [{low}, {high}]"
    return None


def _normal(name: str, argument: Mapping[str, Any]) -> str | None:
    if problem := keys(argument, ("std",), ("mean",)):
        return f"'{name}': {problem}"
    if problem := real(argument["std"], above=0.0):
        return f"'{name}': 'std' {problem}"
    problem = real(argument.get("mean", 0.0))
    return f"'{name}': 'mean' {problem}" if problem else None


def _variance_scaling(argument: Any) -> str | None:
    name = "variance_scaling"
    if not isinstance(argument, Mapping):
        form = WITH_ARGUMENT[name]
        return f"'{name}' takes a mapping, not {shown(argument)}: {form}"
    if problem := keys(argument, (), ("scale", "mode", "distribution")):
        return f"'{name}': {problem}"
    if problem := real(argument.get("scale", 1.0), above=0.0):
        return f"'{name}': 'scale' {problem}"
    for key, choices in (("mode", MODES), ("distribution", DISTRIBUTIONS)):
        if (given := argument.get(key, choices[0])) not in choices:
            return f"'{name}': {unknown(given, choices, key)}"
    return None
