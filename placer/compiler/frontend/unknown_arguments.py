"""The error for an unknown keyword argument of a function of `placer`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from placer.compiler.frontend.setting_names import find_node_kind, find_setting
from placer.errors import PlacerError, did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])

_FUNCTIONS: Final = ("compile", "train", "launch", "predict", "export")
_OF_SPECS: Final = ("compile", "train")
"""The functions that compile a spec."""
_OTHER_NAMES: Final = {"params": "init_params", "init_params": "params"}
"""How other functions name this argument."""


def hides_rest(function: Function) -> Function:
    """Hide `**unknown` from `help`: the function takes it to raise a helpful error."""
    signature = inspect.signature(function)
    *own, rest = signature.parameters.values()
    assert rest.kind is inspect.Parameter.VAR_KEYWORD
    shown = signature.replace(parameters=own)
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


def refuse_unknown(function: str, given: Mapping[str, object]) -> None:
    """Raise PlacerError for an unknown keyword argument of a function of `placer`.

    The hint names the spec key that the user means, the functions with this argument,
    or a similar argument.

    Args:
        function: The name of the function, such as `compile`.
        given: Its keyword arguments, or some of them.
    """
    known = _arguments(function)
    for name, value in given.items():
        if name not in known:
            raise PlacerError(
                f"placer.{function} has no argument '{name}'",
                hint=_hint(function, name, value, known),
            )


def _hint(
    function: str, name: str, value: object, known: Mapping[str, object]
) -> str | None:
    if (other := _OTHER_NAMES.get(name)) in known:
        return f"did you mean '{other}'?"
    having = [each for each in _FUNCTIONS if name in _arguments(each)]
    if instead := _setting(name, value, [*known, *([name] if having else [])]):
        if function in _OF_SPECS:
            return f"did you mean {instead}?"
        return f"a build is already compiled: compile its spec again with {instead}"
    if having:
        listed = ", ".join(f"placer.{each}" for each in having)
        return f"it is an argument of: {listed}"
    return did_you_mean(name, known)


def _setting(name: str, value: object, others: list[str]) -> str | None:
    """Return the argument that sets this spec key or number of nodes, or None."""
    if name in ("set", "overrides"):
        return f"overrides={value!r}"
    if (kind := find_node_kind(name)) is not None:
        return f"nodes={{{kind!r}: {value!r}}}"
    if (path := find_setting(name, others)) is not None:
        return f"overrides={{{path!r}: {value!r}}}"
    return None


def _arguments(function: str) -> Mapping[str, object]:
    """Return the arguments of a function. The function is imported by its public name:
    some functions are in modules above this one."""
    found = getattr(importlib.import_module("placer"), function)
    return inspect.signature(found).parameters
