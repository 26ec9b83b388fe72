"""Reads the options of an engine, `--option name=value`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from placer.errors import PlacerError, did_you_mean
from placer.launcher.engines.engine import EngineOption

_SIZE: Final = re.compile(r"([1-9][0-9]{0,8})(KiB|MiB|GiB|TiB)")
_SHIFTS: Final = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_WORDS: Final = {"true": True, "yes": True, "false": False, "no": False}
_EXPECTED: Final = {
    "str": "a text",
    "int": "a whole number without a sign",
    "bool": "true or false",
    "size": "a size, such as 4GiB",
}


def read_engine_options(
    engine: str, options: Sequence[EngineOption], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a value for each option of an engine.

    Args:
        engine: the name of the engine.
        options: its options.
        given: the options of the user, as texts or as values of their types.

    Raises:
        PlacerError: for an unknown option or an invalid value.
    """
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            raise PlacerError(
                f"{engine} has no option '{name}'", hint=did_you_mean(name, known)
            )
    return {
        name: _read(engine, option, given[name]) if name in given else option.default
        for name, option in known.items()
    }


def split_options(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of `--option name=value` arguments by name. Raises PlacerError
    if an argument has another form, or a name is repeated."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PlacerError(
                f"--option '{text}' must have the form name=value, such as cpus=4"
            )
        if name.strip() in pairs:
            raise PlacerError(f"--option {name.strip()} is given twice")
        pairs[name.strip()] = value
    return pairs


def list_options(options: Sequence[EngineOption]) -> list[str]:
    """Return one line of help for each option."""
    width = max((len(option.name) for option in options), default=0)
    lines = []
    for option in options:
        default = "" if option.default is None else f" By default {option.default}."
        lines.append(f"{option.name:<{width}}  {option.help}{default}")
    return lines


def _read(engine: str, option: EngineOption, value: Any) -> Any:
    read = _convert(option.type, value) if isinstance(value, str) else value
    types = {"str": str, "int": int, "bool": bool, "size": int}
    is_right = isinstance(read, types[option.type])
    if isinstance(read, bool) and option.type != "bool":
        is_right = False
    if not is_right:
        raise PlacerError(
            f"{engine}: '{option.name}' must be {_EXPECTED[option.type]}, not '{value}'"
        )
    if isinstance(read, str) and not read.isprintable():
        raise PlacerError(
            f"{engine}: '{option.name}' contains unprintable characters: {read!r}"
        )
    if option.choices and read not in option.choices:
        raise PlacerError(
            f"{engine}: '{value}' is not a {option.name}",
            hint=did_you_mean(str(value), option.choices),
        )
    return read


def _convert(kind: str, text: str) -> Any:
    match kind:
        case "int":
            return int(text) if re.fullmatch("[0-9]{1,12}", text) else None
        case "bool":
            return _WORDS.get(text.lower())
        case "size":
            found = _SIZE.fullmatch(text)
            return None if found is None else int(found[1]) << _SHIFTS[found[2]]
    return text
