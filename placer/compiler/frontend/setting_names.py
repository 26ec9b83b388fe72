"""Finds keys of the spec from names that users try, such as `lr` or `batch_size`."""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Iterator
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Struct
from msgspec.structs import fields

from placer.compiler.frontend.schema import DataSection, Predict, Spec, Train
from placer.errors import nearest
from placer.plan.settings.data.source import Data
from placer.plan.settings.training.optimizers import RULES

_OPTIMIZER: Final = "train.optimizer"
_SYNONYMS: Final = {
    "lr": "learning_rate",
    "step_size": "learning_rate",
    "rate": "learning_rate",
    "batch_size": "batch",
    "batchsize": "batch",
    "minibatch": "batch",
    "minibatch_size": "batch",
    "random_seed": "seed",
    "rng_seed": "seed",
    "accumulation_steps": "gradient_accumulation",
    "grad_accumulation": "gradient_accumulation",
    "dtype": "precision",
    "wd": "weight_decay",
    "mode": "update",
    "sync_mode": "update",
    "update_mode": "update",
}
_PATHS: Final = {
    "optimizer": f"{_OPTIMIZER}.op",
    "grad_clip": "train.clip.global_norm",
    "clip_norm": "train.clip.global_norm",
    "max_grad_norm": "train.clip.global_norm",
    "clip_grad_norm": "train.clip.global_norm",
}
"""Common names for keys that are spelled differently in a spec."""
_RATIO: Final = 0.7
"""How similar an unknown name must be to a key: there are many keys."""
_SECTIONS: Final[dict[str, type[Struct]]] = {
    "": Spec,
    "data.": DataSection,
    "data.train.": Data,
    "train.": Train,
    "predict.": Predict,
}
_SCALARS: Final = (bool, int, float, str)
_KINDS: Final = {
    "worker": "worker",
    "nproc": "worker",
    "replica": "worker",
    "ps": "ps",
    "server": "ps",
    "parameter_server": "ps",
}


def setting_paths() -> dict[str, str]:
    """Return the paths of all keys with a single value, by key name. Covers the
    required sections of a spec and the hyperparameters of optimizers. If several
    sections have a key, the outermost section counts."""
    paths: dict[str, str] = dict(_PATHS)
    for path in sorted(_paths(Spec, ""), key=lambda path: path.count(".")):
        paths.setdefault(path.rpartition(".")[2], path)
    for rule in RULES.values():
        for name in rule.__struct_fields__:
            paths.setdefault(name, f"{_OPTIMIZER}.{name}")
    return paths


def find_setting(name: str, others: Collection[str] = ()) -> str | None:
    """Return the path of the key that a name means: `train.epochs` for `epoch`. None if
    no key fits. Letter case, hyphens, a plural and a prefix such as `num-` are ignored.
    Typing errors are ignored too, unless a name in `others` is closer."""
    paths = setting_paths()
    for each in _forms(name):
        path = paths.get(_SYNONYMS.get(each, each))
        if path is not None:
            return path
    keys = {*paths, *_SYNONYMS}
    close = nearest(_plain(name), keys.union(map(_plain, others)), _RATIO)
    return paths[_SYNONYMS.get(close, close)] if close in keys else None


def find_elsewhere(key: str, section: str) -> str | None:
    """Return the path of a key that belongs to another section, or None."""
    name = _SYNONYMS.get(key, key)
    for prefix, struct in _SECTIONS.items():
        for field in fields(struct):
            if field.encode_name == name and prefix != f"{section}.":
                return f"{prefix}{name}"
    return setting_paths().get(name)


def find_node_kind(name: str) -> str | None:
    """Return the node kind for a common name such as `workers`, or None."""
    return next((_KINDS[each] for each in _forms(name) if each in _KINDS), None)


def _forms(name: str) -> Iterator[str]:
    plain = _plain(name)
    short = re.sub("^(num|n|max|train|training)_", "", plain)
    for each in (plain, short):
        yield each
        yield each.removesuffix("s")
        yield f"{each}s"


def _plain(name: str) -> str:
    return name.strip("-").replace("-", "_").casefold()


def _paths(section: type[Struct], prefix: str) -> Iterator[str]:
    """Yield the paths of a section's keys, including its required sections."""
    hints = get_type_hints(section)
    for field in fields(section):
        path = f"{prefix}{field.encode_name}"
        members = list(_members(hints[field.name]))
        sections = [member for member in members if _is_section(member)]
        if any(
            member in _SCALARS or get_origin(member) is Literal for member in members
        ):
            yield path
        elif field.required and sections:
            yield from _paths(sections[0], f"{path}.")


def _members(hint: Any) -> Iterator[Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _members(get_args(hint)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _members(member)
    else:
        yield hint


def _is_section(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, Struct)
