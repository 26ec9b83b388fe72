"""Reads the key `features` of a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.place.types import FLOATS, TensorType
from placer.plan.settings.data.feature_columns import (
    check_features,
    expand_features,
    may_read,
)
from placer.plan.settings.data.features import Feature, Features, check_feature
from placer.plan.settings.data.sources import SourceError
from placer.plan.settings.mistake import Mistake

KEYS = ("int64", "uint64")
"""The dtypes of inputs that can hold keys."""


def read_features(
    section: SpecNode,
    node: SpecNode,
    source: str,
    header: Sequence[str] | None,
    where: str,
    problems: Problems,
) -> dict[str, Feature] | None:
    """Read the features of a source; None after an error.

    Args:
        section: The mapping of the features.
        node: The mapping of the source, which contains `section`.
        source: The text of the source.
        header: The columns of the source, if the spec lists them.
        where: The name of the mapping in messages.
        problems: Collects the errors.
    """
    hint = "write {NAME: {hash: COLUMN}}"
    mapping = problems.expect(section, MappingNode, f"{where} must be a mapping", hint)
    if mapping is None:
        return None
    read = {name: _read(name, node, mapping, problems) for name, node in mapping}
    features = {name: feature for name, feature in read.items() if feature is not None}
    if len(features) < len(read):
        return None
    try:
        check_features(features)
        if header is not None:
            expand_features(source, features, header)
    except SourceError as error:
        problems.add_mistake(error.mistake, node)
        return None
    return features


def _read(
    name: str, node: SpecNode, section: MappingNode, problems: Problems
) -> Feature | None:
    where = f"feature '{name}'"
    good = decode(node, Feature, where, problems)
    if not isinstance(node, MappingNode):
        return None
    fields = Feature.__struct_fields__
    if len(good) < len(fields) or not node.entries.keys() <= {*fields}:
        return None
    feature = Feature(**good)
    if mistake := check_feature(name, feature):
        problems.add_mistake(mistake, section)
        return None
    return feature


def check_dtype(
    name: str, type_: TensorType, wanted: str | Sequence[str], features: Features
) -> Mistake | None:
    """Return the mistake if an input that reads features has a wrong dtype."""
    for feature in may_read(wanted, features):
        kind, dtype = feature.kind, type_.dtype
        if feature.is_key and dtype not in KEYS:
            message = f"keys of '{kind}' have 64 bits"
            hint = (
                f"declare it {_of(type_, 'int64')}, or write bins: N in the feature for"
            )
            hint += " numbers below N"
        elif feature.is_float and dtype not in FLOATS:
            message = f"values of '{kind}' are floats"
            hint = f"declare it {_of(type_, 'float32')}"
        else:
            continue
        is_own = wanted == name and name in features
        path = "features" if is_own else "columns", name
        message = f"input '{name}' is {type_}, but {message}"
        return Mistake(path, message, hint, of_key=is_own)
    return None


def inputs_with_keys(
    inputs: Mapping[str, TensorType | None],
    columns: Mapping[str, str | Sequence[str]],
    features: Features,
) -> frozenset[str]:
    """Return the inputs that read 64-bit keys."""
    return frozenset(
        name
        for name in inputs
        if any(feature.is_key for feature in may_read(columns[name], features))
    )


def _of(type_: TensorType, dtype: str) -> TensorType:
    return TensorType(dtype, type_.shape)
