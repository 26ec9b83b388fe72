"""Reads the key `features` of a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SequenceNode, SpecNode
from placer.errors import Span
from placer.place.types import FLOATS, TensorType
from placer.plan.settings.data.feature_columns import (
    FeatureError,
    check_features,
    expand_features,
    may_read,
)
from placer.plan.settings.data.features import Feature, Features, check_feature

KEYS = ("int64", "uint64")
"""The dtypes of inputs that can hold keys."""


def read_features(
    section: SpecNode,
    source: str,
    header: Sequence[str] | None,
    where: str,
    problems: Problems,
) -> dict[str, Feature] | None:
    """Read the features of a source; report errors and return None.

    Args:
        section: the mapping of the spec.
        source: the text of the source.
        header: the columns of the source, if the spec lists them.
        where: the name of the mapping in messages.
        problems: where errors are reported.
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
    except FeatureError as error:
        problems.add_error(error, span=_span(error, mapping, features))
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
    mistake = check_feature(name, feature)
    if mistake is None:
        return feature
    span = node.span
    if mistake.key == "":
        span = section.keys[name].span
    elif mistake.key is not None:
        at = node.entries[mistake.key]
        if mistake.item is not None and isinstance(at, SequenceNode):
            at = at.items[mistake.item]
        span = at.span
    problems.add(mistake.message, span, mistake.hint)
    return None


def _span(error: FeatureError, section: MappingNode, features: Features) -> Span:
    """Return the position of the name or of the operand that is wrong."""
    if error.operand is None:
        return section.keys[error.feature].span
    node = section.entries[error.feature]
    assert isinstance(node, MappingNode)
    operand = node.entries[features[error.feature].kind]
    if isinstance(operand, SequenceNode):
        operand = operand.items[error.operand]
    return operand.span


def check_dtype(
    name: str, type_: TensorType, wanted: str | Sequence[str], features: Features
) -> tuple[str, str] | None:
    """Return what is wrong with the dtype of an input that reads features, and a hint."""
    for feature in may_read(wanted, features):
        kind, dtype = feature.kind, type_.dtype
        what = f"input '{name}' is {type_}"
        if feature.is_key and dtype not in KEYS:
            return (
                f"{what}, and the keys of '{kind}' have 64 bits",
                f"declare it {_of(type_, 'int64')}, or write bins: N in the feature for"
                " numbers below N",
            )
        if feature.is_float and dtype not in FLOATS:
            hint = f"declare it {_of(type_, 'float32')}"
            return f"{what}, and the values of '{kind}' are floats", hint
    return None


def inputs_with_keys(
    inputs: Mapping[str, TensorType | None],
    columns: Mapping[str, str | Sequence[str]],
    features: Features,
) -> frozenset[str]:
    """Return the inputs that read keys of 64 bits."""
    return frozenset(
        name
        for name in inputs
        if any(feature.is_key for feature in may_read(columns[name], features))
    )


def _of(type_: TensorType, dtype: str) -> TensorType:
    return TensorType(dtype, type_.shape)
