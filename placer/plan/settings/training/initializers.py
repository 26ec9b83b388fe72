"""Initializers: the forms of `init` in a spec, and their checks.

`placer.tables.initial.initial_values` computes the initial values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod, sqrt
from re import compile as pattern
from typing import Any

from placer.plan.settings.checks import (
    Check,
    accept,
    check_mapping,
    check_real,
    describe_unknown,
    describe_value,
)


def _scaled(scale: float, mode: str, distribution: str) -> tuple[str, Any]:
    settings = {"scale": scale, "mode": mode, "distribution": distribution}
    return "variance_scaling", settings


BARE: dict[str, tuple[str, Any]] = {
    "zeros": ("constant", 0.0),
    "ones": ("constant", 1.0),
    "uniform": ("uniform", (-0.05, 0.05)),
    "normal": ("normal", 0.05),
    "truncated_normal": ("truncated_normal", 0.05),
    # Glorot 2010: the variance is 2 / (fan_in + fan_out)
    "xavier_uniform": _scaled(1.0, "fan_avg", "uniform"),
    "xavier_normal": _scaled(1.0, "fan_avg", "normal"),
    # He 2015: the variance is 2 / fan_in
    "he_uniform": _scaled(2.0, "fan_in", "uniform"),
    "he_normal": _scaled(2.0, "fan_in", "normal"),
    # LeCun 1998: the variance is 1 / fan_in
    "lecun_uniform": _scaled(1.0, "fan_in", "uniform"),
    "lecun_normal": _scaled(1.0, "fan_in", "normal"),
    # Saxe 2014: orthonormal rows or columns, whichever are fewer
    "orthogonal": ("orthogonal", 1.0),
    "identity": ("identity", 1.0),
}
"""The initializers without an argument, and the form with one that each stands for."""

WITH_ARGUMENT: dict[str, str] = {
    "constant": "{constant: c}: every element is c",
    "uniform": "{uniform: [low, high]}: uniform on that interval",
    "normal": "{normal: std} or {normal: {mean: 0.0, std}}",
    "truncated_normal": "{truncated_normal: std} or"
    " {truncated_normal: {mean: 0.0, std}}: as normal, truncated at mean ± 2 std",
    "variance_scaling": "{variance_scaling: {scale: 1.0, mode: fan_in, distribution:"
    " truncated_normal}}: variance scale / fan",
    "orthogonal": "{orthogonal: gain}: gain times an orthogonal matrix",
    "identity": "{identity: gain}: gain on the diagonal of a matrix",
    "file": "{file: weights.safetensors} or {file: checkpoints/best}: the tensor of that"
    " name in a file or a checkpoint",
}
"""The initializers with an argument, written as a mapping with one key."""

ALIASES: dict[str, str] = {
    "glorot_uniform": "xavier_uniform",
    "glorot_normal": "xavier_normal",
    "kaiming_uniform": "he_uniform",
    "kaiming_normal": "he_normal",
    "eye": "identity",
}
"""Other names of initializers. The graph contains only the names on the right."""

_NAMES = {*BARE, *WITH_ARGUMENT, *ALIASES}

MODES = ("fan_in", "fan_out", "fan_avg")
DISTRIBUTIONS = ("uniform", "normal", "truncated_normal")


def canonicalize(init: Any) -> Any:
    """Return an initializer with its alias replaced by the name that the graph uses."""
    if isinstance(init, str):
        return ALIASES.get(init, init)
    if isinstance(init, Mapping):
        return {ALIASES.get(name, name): argument for name, argument in init.items()}
    return init


def check(init: object) -> str | None:
    """Check an initializer as written in a spec; return what is wrong, or None."""
    if isinstance(init, str):
        canonical = ALIASES.get(init, init)
        if canonical in BARE:
            return None
        if canonical in WITH_ARGUMENT:
            return f"initializer '{init}' needs a value: {WITH_ARGUMENT[canonical]}"
        return describe_unknown(init, _NAMES, "initializer")
    if not isinstance(init, Mapping):
        return (
            "an initializer is a name or a mapping of one name,"
            f" such as {{constant: 0.0}}, not {describe_value(init)}"
        )
    if len(init) != 1:
        return f"an initializer has one name, not {len(init)}"
    ((name, argument),) = init.items()
    canonical = ALIASES.get(str(name), str(name))
    if canonical in WITH_ARGUMENT:
        return _check_argument(canonical, argument)
    if canonical in BARE:
        return f"initializer '{name}' takes no value; write {name} alone"
    return describe_unknown(name, _NAMES, "initializer")


def file_of(init: Any) -> str | None:
    """Return the path of an initializer `{file: ...}`, and None for any other.

    `init` has passed `check`. The path is one of a safetensors file if it ends in
    `.safetensors`, and otherwise one of a checkpoint or a folder of checkpoints.
    """
    file = init.get("file") if isinstance(init, Mapping) else None
    return file if isinstance(file, str) else None


def is_checkpoint(file: str) -> bool:
    """Whether the path of an initializer is one of a checkpoint."""
    return not file.endswith(_SUFFIX)


def file_in_build(file: str) -> str:
    """Return the name that the file of an initializer has in a build folder."""
    name = file.replace("/", "-")
    return f"{name}{_SUFFIX}" if is_checkpoint(file) else name


def in_build(init: Any) -> Any:
    """Return an initializer as the plan has it: its file is one in the build folder."""
    file = file_of(init)
    return init if file is None else {"file": file_in_build(file)}


_TRUNCATED_STD = 0.87962566103423978  # of a standard normal that is truncated at ± 2


def form_of(init: Any, shape: tuple[int, ...]) -> tuple[str, Any]:
    """Reduce an initializer to a form and its argument: a constant, `orthogonal`,
    `identity`, or a distribution and its two arguments.

    `init` is canonical, and can fill a parameter of `shape`.
    """
    form, argument = BARE[init] if isinstance(init, str) else next(iter(init.items()))
    if form == "variance_scaling":
        return _variance_scaling(shape, **argument)
    if form in ("normal", "truncated_normal"):
        if not isinstance(argument, Mapping):
            argument = {"std": argument}
        return form, (argument.get("mean", 0.0), argument["std"])
    return form, argument


def _variance_scaling(
    shape: tuple[int, ...],
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
) -> tuple[str, tuple[float, float]]:
    """Return the distribution with mean 0 and variance scale / fan, as Keras and JAX
    define variance scaling."""
    fan_in, fan_out = fan_in_out(shape)
    by_mode = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    fan = by_mode[mode]
    match distribution:
        case "uniform":
            limit = sqrt(3.0 * scale / fan)
            return "uniform", (-limit, limit)
        case "normal":
            return "normal", (0.0, sqrt(scale / fan))
    return "truncated_normal", (0.0, sqrt(scale / fan) / _TRUNCATED_STD)


def fan_in_out(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a parameter of shape [in, out], or [height, width, …,
    in, out].

    `in` is the number of channels that one output sees: 1 in the kernel of a depthwise
    convolution. Both fans of a vector are its length, and those of a scalar are 1.
    """
    if len(shape) < 2:
        n = max(1, prod(shape))
        return n, n
    field = prod(shape[:-2])
    return max(1, field * shape[-2]), max(1, field * shape[-1])


def check_shape(init: Any, shape: tuple[int, ...]) -> str | None:
    """Check that an initializer can fill a parameter of `shape`; return what is wrong.

    `init` has passed `check`.
    """
    name = init if isinstance(init, str) else next(iter(init))
    match ALIASES.get(name, name):
        case "orthogonal" if len(shape) < 2:
            return f"'orthogonal' needs two dimensions or more, not {list(shape)}"
        case "identity" if len(shape) != 2:
            return f"'identity' needs a matrix, not {list(shape)}"
    return None


def check_rows(init: Any, rows: int | None) -> str | None:
    """Check that an initializer can fill rows of a matrix one by one; return what is
    wrong.

    `init` has passed `check`. `rows` is the number of all rows, None if it is not known.
    """
    name = init if isinstance(init, str) else next(iter(init))
    form, _ = BARE.get(name, (name, None))
    if form in ("orthogonal", "identity", "file"):
        return f"'{name}' fills a whole matrix, and rows are made one by one"
    if form == "variance_scaling" and rows is None:
        return f"'{name}' depends on the number of rows: give 'rows'"
    return None


_positive = partial(check_real, above=0.0)


def _check_argument(name: str, argument: Any) -> str | None:
    match name:
        case "uniform":
            return _check_interval(argument)
        case "variance_scaling":
            return _check_variance_scaling(argument)
        case "file":
            return _check_file(argument)
        case "normal" | "truncated_normal" if isinstance(argument, Mapping):
            problem = check_mapping(argument, {"std": _positive}, {"mean": check_real})
            return f"'{name}': {problem}" if problem else None
        case "normal" | "truncated_normal":
            problem = _positive(argument)
        case _:
            problem = check_real(argument)
    return f"'{name}' {problem}" if problem else None


_SUFFIX = ".safetensors"
_PATH = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def _check_file(argument: Any) -> str | None:
    if isinstance(argument, str) and _PATH.fullmatch(argument):
        return None
    return (
        "'file' takes a safetensors file or a checkpoint in the folder of the spec, such"
        f" as weights.safetensors or checkpoints/best, not {describe_value(argument)}"
    )


def _check_interval(argument: Any) -> str | None:
    if not isinstance(argument, list | tuple) or len(argument) != 2:
        return f"'uniform' takes [low, high], not {describe_value(argument)}"
    for end in argument:
        if problem := check_real(end):
            return f"an end of 'uniform' {problem}"
    low, high = argument
    if not low < high:
        return f"'uniform' takes [low, high] with low < high, not [{low}, {high}]"
    return None


def _check_variance_scaling(argument: Any) -> str | None:
    name = "variance_scaling"
    if not isinstance(argument, Mapping):
        form = WITH_ARGUMENT[name]
        return f"'{name}' takes a mapping, not {describe_value(argument)}: {form}"
    keys: dict[str, Check] = {
        "scale": _positive,
        "mode": accept,
        "distribution": accept,
    }
    problem = check_mapping(argument, {}, keys)
    for key, choices in (("mode", MODES), ("distribution", DISTRIBUTIONS)):
        if not problem and (choice := argument.get(key, choices[0])) not in choices:
            problem = describe_unknown(choice, choices, key)
    return f"'{name}': {problem}" if problem else None
