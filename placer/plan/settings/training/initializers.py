"""Initializers, as written under `init` in a spec.

`placer.tables.initial.initial_values` computes the initial values.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from placer.place.types import FLOATS
from placer.plan.settings.mistake import Mistake, refuse

Positive = Annotated[float, Meta(gt=0)]
Mode = Literal["fan_in", "fan_out", "fan_avg"]
Distribution = Literal["uniform", "normal", "truncated_normal"]
MODES: Final = get_args(Mode)
DISTRIBUTIONS: Final = get_args(Distribution)
PATH: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*(?!\n)$"
"""The pattern of a path relative to the folder of a spec."""


class Normal(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A normal distribution."""

    mean: float = 0.0
    std: Positive


class VarianceScaling(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A distribution with mean 0 and variance scale / fan, as in Keras and JAX."""

    scale: Positive = 1.0
    mode: Mode = "fan_in"
    distribution: Distribution = "truncated_normal"

    def form(self, shape: tuple[int, ...]) -> tuple[str, tuple[float, float]]:
        """Return the distribution for a parameter of `shape`, and its two arguments."""
        fan_in, fan_out = fan_in_out(shape)
        by_mode = {"fan_in": fan_in, "fan_out": fan_out}
        fan = by_mode.get(self.mode, (fan_in + fan_out) / 2)
        match self.distribution:
            case "uniform":
                limit = sqrt(3.0 * self.scale / fan)
                return "uniform", (-limit, limit)
            case "normal":
                return "normal", (0.0, sqrt(self.scale / fan))
        return "truncated_normal", (0.0, sqrt(self.scale / fan) / _TRUNCATED_STD)


_TRUNCATED_STD = 0.87962566103423978  # std of a standard normal truncated at ± 2


class Initializer(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """An initializer with an argument. Exactly one key is set."""

    constant: float | None = None
    uniform: tuple[float, float] | None = None
    normal: Positive | Normal | None = None
    truncated_normal: Positive | Normal | None = None
    variance_scaling: VarianceScaling | None = None
    orthogonal: float | None = None
    identity: float | None = None
    file: Annotated[str, Meta(pattern=PATH)] | None = None

    def __post_init__(self) -> None:
        """Raise MistakeError unless exactly one key is set and the interval is valid."""
        names = self._names()
        if len(names) != 1:
            refuse(
                Mistake((), f"an initializer needs exactly one name, not {len(names)}")
            )
        if self.uniform is not None and not self.uniform[0] < self.uniform[1]:
            low, high = self.uniform
            message = (
                f"'uniform' needs [low, high] with low < high, not [{low:g}, {high:g}]"
            )
            refuse(Mistake(("uniform",), message))

    def _names(self) -> list[str]:
        keys = self.__struct_fields__
        return [key for key in keys if getattr(self, key) is not None]

    @property
    def name(self) -> str:
        """The name of the initializer, such as `normal`."""
        return self._names()[0]


Bare = Literal[
    "zeros",
    "ones",
    "uniform",
    "normal",
    "truncated_normal",
    "xavier_uniform",
    "xavier_normal",
    "he_uniform",
    "he_normal",
    "lecun_uniform",
    "lecun_normal",
    "orthogonal",
    "identity",
]
Init = Bare | Initializer
"""An initializer: a bare name, or a name with an argument."""


def _scaled(scale: float, mode: Mode, distribution: Distribution) -> Initializer:
    scaling = VarianceScaling(scale=scale, mode=mode, distribution=distribution)
    return Initializer(variance_scaling=scaling)


BARE: dict[str, Initializer] = {
    "zeros": Initializer(constant=0.0),
    "ones": Initializer(constant=1.0),
    "uniform": Initializer(uniform=(-0.05, 0.05)),
    "normal": Initializer(normal=0.05),
    "truncated_normal": Initializer(truncated_normal=0.05),
    # Glorot 2010: the variance is 2 / (fan_in + fan_out)
    "xavier_uniform": _scaled(1.0, "fan_avg", "uniform"),
    "xavier_normal": _scaled(1.0, "fan_avg", "normal"),
    # He 2015: the variance is 2 / fan_in
    "he_uniform": _scaled(2.0, "fan_in", "uniform"),
    "he_normal": _scaled(2.0, "fan_in", "normal"),
    # LeCun 1998: the variance is 1 / fan_in
    "lecun_uniform": _scaled(1.0, "fan_in", "uniform"),
    "lecun_normal": _scaled(1.0, "fan_in", "normal"),
    # Saxe 2014: orthonormal rows or columns, whichever of them are fewer
    "orthogonal": Initializer(orthogonal=1.0),
    "identity": Initializer(identity=1.0),
}
"""The initializers without an argument, as initializers with an argument."""

WITH_ARGUMENT: dict[str, str] = {
    "constant": "{constant: c}: set every element to c",
    "uniform": "{uniform: [low, high]}: draw uniformly from the interval",
    "normal": "{normal: std} or {normal: {mean: 0.0, std}}",
    "truncated_normal": "{truncated_normal: std} or"
    " {truncated_normal: {mean: 0.0, std}}: as normal, truncated at mean ± 2 std",
    "variance_scaling": "{variance_scaling: {scale: 1.0, mode: fan_in, distribution:"
    " truncated_normal}}: variance scale / fan",
    "orthogonal": "{orthogonal: gain}: gain times an orthogonal matrix",
    "identity": "{identity: gain}: gain times the identity matrix",
    "file": "{file: weights.safetensors} or {file: checkpoints/best}: load the tensor with"
    " the parameter's name from a file or checkpoint",
}
"""The initializers with an argument, written as a mapping with one key."""

ALIASES: dict[str, str] = {
    "glorot_uniform": "xavier_uniform",
    "glorot_normal": "xavier_normal",
    "kaiming_uniform": "he_uniform",
    "kaiming_normal": "he_normal",
    "eye": "identity",
}
"""Alternative names of initializers. Graphs contain only the names on the right."""


def read_init(written: Any) -> Init:
    """Return an initializer from its form in a spec, with aliases replaced.

    >>> read_init({"eye": 2})
    Initializer(identity=2.0)

    Raises msgspec.ValidationError if the initializer is invalid.
    """
    if isinstance(written, str):
        written = ALIASES.get(written, written)
    elif isinstance(written, Mapping):
        written = {ALIASES.get(key, key): each for key, each in written.items()}
    init: Init = msgspec.convert(written, Init)
    return init


def name_of(init: Init) -> str:
    """Return the name of an initializer, such as `normal`."""
    return init if isinstance(init, str) else init.name


def file_of(init: Init) -> str | None:
    """Return the path of an initializer `{file: ...}`, or None for other initializers.

    A path ending in `.safetensors` is a file. Other paths lead to a checkpoint, or to a
    folder of checkpoints.
    """
    return init.file if isinstance(init, Initializer) else None


_SUFFIX = ".safetensors"


def is_checkpoint(file: str) -> bool:
    """Whether the path of a file initializer leads to a checkpoint."""
    return not file.endswith(_SUFFIX)


def file_in_build(file: str) -> str:
    """Return the name of an initializer's file inside a build folder."""
    name = file.replace("/", "-")
    return f"{name}{_SUFFIX}" if is_checkpoint(file) else name


def in_build(init: Init) -> Init:
    """Return an initializer for the plan: its file path is inside the build folder."""
    file = file_of(init)
    return init if file is None else Initializer(file=file_in_build(file))


def form_of(init: Init, shape: tuple[int, ...]) -> tuple[str, Any]:
    """Reduce an initializer to a name and its argument.

    The name is `constant`, `orthogonal`, `identity`, or a distribution with two arguments.

    Args:
        init: any initializer except a file, valid for `shape` (`check_shape`).
        shape: the shape of the parameter.
    """
    init = BARE[init] if isinstance(init, str) else init
    match getattr(init, init.name):
        case VarianceScaling() as scaling:
            return scaling.form(shape)
        case Normal(mean=mean, std=std):
            return init.name, (mean, std)
        case argument if init.name in ("normal", "truncated_normal"):
            return init.name, (0.0, argument)
        case argument:
            return init.name, argument


def fan_in_out(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a parameter of shape [in, out] or [height, width, …, in,
    out].

    `in` is the number of channels that one output reads: 1 for a depthwise convolution.
    Both fans of a vector are its length; both fans of a scalar are 1.
    """
    if len(shape) < 2:
        n = max(1, prod(shape))
        return n, n
    field = prod(shape[:-2])
    return max(1, field * shape[-2]), max(1, field * shape[-1])


def check_shape(init: Init, shape: tuple[int, ...]) -> Mistake | None:
    """Return why an initializer cannot fill a parameter of `shape`, or None."""
    match name_of(init):
        case "orthogonal" if len(shape) < 2:
            needed = "at least two dimensions"
        case "identity" if len(shape) != 2:
            needed = "a matrix"
        case _:
            return None
    message = f"'{name_of(init)}' needs {needed}, not {list(shape)}"
    return Mistake(("init",), message)


def check_dtype(init: Init, dtype: str) -> Mistake | None:
    """Return why an initializer cannot give values of a dtype, or None."""
    if dtype in FLOATS or file_of(init) is not None:
        return None
    full = BARE[init] if isinstance(init, str) else init
    value = full.constant
    low, high = _LIMITS[dtype]
    if value is not None and value.is_integer() and low <= value <= high:
        return None
    name = name_of(init) if value is None else f"{value:g}"
    message = f"'{name}' gives no value of {dtype}"
    hint = f"write zeros, ones, or {{constant: N}} with a whole N from {low} to {high}"
    return Mistake(("init",), message, hint)


_LIMITS = {
    "bool": (0, 1),
    **{f"int{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (0, 2**n - 1) for n in (8, 16, 32, 64)},
}
"""The smallest and the largest value of each integer dtype."""


def check_rows(init: Init, rows: int | None) -> Mistake | None:
    """Return why an initializer cannot fill rows of a matrix one by one, or None.

    `rows` is the total number of rows, or None if unknown.
    """
    full, name = BARE[init] if isinstance(init, str) else init, name_of(init)
    if full.name in ("orthogonal", "identity", "file"):
        message = f"'{name}' fills a whole matrix, but sparse tables create single rows"
    elif full.name == "variance_scaling" and rows is None:
        message = f"'{name}' depends on the number of rows: set 'rows'"
    else:
        return None
    return Mistake(("init",), message)
